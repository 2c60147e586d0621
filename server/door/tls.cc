#include "server/door/tls.h"

#include <array>
#include <string_view>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_cat.h"

#include "server/identity/certificate_name.h"

namespace quire::server::door {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

Bio OpenText(const std::string& text) {
  return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free);
}

Certificate NextCertificate(BIO* bio) {
  return Certificate(::PEM_read_bio_X509(bio, nullptr, nullptr, nullptr), &::X509_free);
}

bool UseChain(SSL_CTX* context, const std::string& pem) {
  const Bio bio = OpenText(pem);
  const Certificate leaf = NextCertificate(bio.get());
  if (leaf == nullptr || ::SSL_CTX_use_certificate(context, leaf.get()) != 1) return false;
  while (Certificate next = NextCertificate(bio.get())) {
    if (::SSL_CTX_add0_chain_cert(context, next.get()) != 1) return false;
    (void)next.release();  // the context owns it now
  }
  return true;
}

bool UseKey(SSL_CTX* context, const std::string& pem) {
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(
      ::PEM_read_bio_PrivateKey(OpenText(pem).get(), nullptr, nullptr, nullptr), &::EVP_PKEY_free);
  return key != nullptr && ::SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

bool UseClientCa(SSL_CTX* context, const std::string& pem) {
  const Bio bio = OpenText(pem);
  int count = 0;
  while (const Certificate ca = NextCertificate(bio.get())) {
    if (::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), ca.get()) != 1 ||
        ::SSL_CTX_add_client_CA(context, ca.get()) != 1) {
      return false;
    }
    ++count;
  }
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return count > 0;
}

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x02h2\x08http/1.1";
  unsigned char* found = nullptr;
  if (::SSL_select_next_proto(&found, size, kOurs, sizeof(kOurs) - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

std::string_view Text(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(::ASN1_STRING_get0_data(text)),
          static_cast<size_t>(::ASN1_STRING_length(text))};
}

std::string IpText(std::string_view bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (family == AF_INET6 && bytes.size() != sizeof(in6_addr)) return "";
  return ::inet_ntop(family, bytes.data(), text.data(), text.size()) == nullptr ? "" : text.data();
}

std::string NameOf(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_DNS:
      return TypedName(NameKind::kDns, Text(name.d.ia5));
    case GEN_URI:
      return TypedName(NameKind::kUri, Text(name.d.ia5));
    case GEN_EMAIL:
      return TypedName(NameKind::kEmail, Text(name.d.ia5));
    case GEN_IPADD:
      return TypedName(NameKind::kIp, IpText(Text(name.d.iPAddress)));
    default:
      return "";
  }
}

std::string AlternativeName(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&::GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          ::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &::GENERAL_NAMES_free);
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string name = NameOf(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty()) return name;
  }
  return "";
}

std::string CommonName(const X509* certificate) {
  const X509_NAME* subject = ::X509_get_subject_name(certificate);
  const int place = ::X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (place < 0) return "";
  return TypedName(NameKind::kCommon,
                   Text(::X509_NAME_ENTRY_get_data(::X509_NAME_get_entry(subject, place))));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const TlsFiles& files) {
  std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(::TLS_server_method()), &::SSL_CTX_free);
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Cipher suites that HTTP/2 allows (RFC 9113, appendix A).
  ::SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20");
  // Turns session resumption off, so that every connection must prove its certificate.
  ::SSL_CTX_set_options(context.get(),
                        SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_alpn_select_cb(context.get(), &ChooseProtocol, nullptr);
  const bool taken = UseChain(context.get(), files.cert_chain) &&
                     UseKey(context.get(), files.private_key) &&
                     (files.client_ca.empty() || UseClientCa(context.get(), files.client_ca));
  const unsigned long error = ::ERR_peek_last_error();
  ::ERR_clear_error();  // reading to the end of a PEM file leaves an error in the queue
  if (taken) return context;
  return absl::InvalidArgumentError(
      absl::StrCat("--tls_cert, --tls_key, --tls_client_ca: OpenSSL does not take them: ",
                   ::ERR_reason_error_string(error) == nullptr ? "unknown error"
                                                               : ::ERR_reason_error_string(error)));
}

std::string CertificateName(const SSL* ssl) {
  const X509* certificate = ::SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr || ::SSL_get_verify_result(ssl) != X509_V_OK) return "";
  std::string name = AlternativeName(certificate);
  if (name.empty()) name = CommonName(certificate);
  return name.find('\0') == std::string::npos ? name : "";
}

bool AcceptsClient(SSL_CTX* context, const SSL* ssl) {
  if (::SSL_CTX_get_verify_mode(context) == SSL_VERIFY_NONE) return true;
  const std::unique_ptr<X509_STORE_CTX, decltype(&::X509_STORE_CTX_free)> check(
      ::X509_STORE_CTX_new(), &::X509_STORE_CTX_free);
  const bool accepts = ::X509_STORE_CTX_init(check.get(), ::SSL_CTX_get_cert_store(context),
                                             ::SSL_get0_peer_certificate(ssl),
                                             ::SSL_get_peer_cert_chain(ssl)) == 1 &&
                       ::X509_STORE_CTX_set_default(check.get(), "ssl_client") == 1 &&
                       ::X509_verify_cert(check.get()) == 1;
  ::ERR_clear_error();
  return accepts;
}

}  // namespace quire::server::door
