#include "tests/server/certificates.h"

#include <atomic>
#include <memory>

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/check.h"

namespace quire::testing {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;

std::string Contents(const Bio& bio) {
  const char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Bio Reader(const std::string& text) {
  return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free);
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = ::X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  QUIRE_CHECK(extension != nullptr);
  ::X509_add_ext(certificate, extension, -1);
  ::X509_EXTENSION_free(extension);
}

Identity Make(const std::string& name, const std::string& alternative_names,
              const Identity* authority) {
  static std::atomic<long> serial = 1;
  const Key key(::EVP_EC_gen("P-256"), &::EVP_PKEY_free);
  const Certificate certificate(::X509_new(), &::X509_free);
  X509* x509 = certificate.get();
  ::X509_set_version(x509, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(x509), serial++);
  ::X509_gmtime_adj(::X509_getm_notBefore(x509), -3600);
  ::X509_gmtime_adj(::X509_getm_notAfter(x509), 24 * 3600);
  ::X509_set_pubkey(x509, key.get());
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  if (authority == nullptr) {
    ::X509_set_issuer_name(x509, ::X509_get_subject_name(x509));
    AddExtension(x509, NID_basic_constraints, "critical,CA:TRUE");
    ::X509_sign(x509, key.get(), ::EVP_sha256());
  } else {
    const Certificate issuer(
        ::PEM_read_bio_X509(Reader(authority->cert).get(), nullptr, nullptr, nullptr),
        &::X509_free);
    const Key issuer_key(
        ::PEM_read_bio_PrivateKey(Reader(authority->key).get(), nullptr, nullptr, nullptr),
        &::EVP_PKEY_free);
    ::X509_set_issuer_name(x509, ::X509_get_subject_name(issuer.get()));
    if (!alternative_names.empty()) AddExtension(x509, NID_subject_alt_name, alternative_names);
    ::X509_sign(x509, issuer_key.get(), ::EVP_sha256());
  }
  const Bio cert_bio(::BIO_new(::BIO_s_mem()), &::BIO_free);
  const Bio key_bio(::BIO_new(::BIO_s_mem()), &::BIO_free);
  QUIRE_CHECK(::PEM_write_bio_X509(cert_bio.get(), x509) == 1);
  QUIRE_CHECK(::PEM_write_bio_PrivateKey(key_bio.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                         nullptr) == 1);
  return {.cert = Contents(cert_bio), .key = Contents(key_bio)};
}

}  // namespace

Identity MakeAuthority(const std::string& name) { return Make(name, "", nullptr); }
Identity MakeIdentity(const std::string& name, const Identity& authority) {
  return Make(name, "DNS:" + name, &authority);
}
Identity MakeIdentity(const std::string& name, const std::string& alternative_names,
                      const Identity& authority) {
  return Make(name, alternative_names, &authority);
}

}  // namespace quire::testing
