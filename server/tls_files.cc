#include "server/tls_files.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::server {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;

struct PemFile {
  std::string_view flag;
  std::string path;
  std::string text;

  absl::Status Wrong(std::string_view what) const {
    ::ERR_clear_error();  // what OpenSSL queued is not for the next reader of its queue
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", flag, path, what));
  }
  Bio Open() const {
    return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free);
  }
};

absl::StatusOr<PemFile> Read(std::string_view flag, const std::string& path) {
  PemFile file{.flag = flag, .path = path};
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return file.Wrong("cannot read");
  std::ostringstream text;
  text << stream.rdbuf();
  file.text = std::move(text).str();
  return file;
}

absl::StatusOr<Certificate> FirstCertificate(const PemFile& file) {
  Certificate certificate(::PEM_read_bio_X509(file.Open().get(), nullptr, nullptr, nullptr),
                          &::X509_free);
  if (certificate == nullptr) return file.Wrong("holds no PEM certificate");
  return certificate;
}

// An encrypted key is an error, not a prompt on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> PrivateKey(const PemFile& file) {
  Key key(::PEM_read_bio_PrivateKey(file.Open().get(), nullptr, &NoPassword, nullptr),
          &::EVP_PKEY_free);
  if (key == nullptr) return file.Wrong("holds no unencrypted PEM private key");
  return key;
}

}  // namespace

absl::StatusOr<TlsFiles> LoadTlsFiles(const ServerConfig& config) {
  TlsFiles files;
  if (config.tls_cert.empty()) return files;
  ASSIGN_OR_RETURN(PemFile cert_file, Read("--tls_cert", config.tls_cert));
  ASSIGN_OR_RETURN(PemFile key_file, Read("--tls_key", config.tls_key));
  ASSIGN_OR_RETURN(const Certificate certificate, FirstCertificate(cert_file));
  ASSIGN_OR_RETURN(const Key key, PrivateKey(key_file));
  if (::X509_check_private_key(certificate.get(), key.get()) != 1) {
    return key_file.Wrong("is not the key of the first certificate in --tls_cert");
  }
  if (!config.tls_client_ca.empty()) {
    ASSIGN_OR_RETURN(PemFile ca_file, Read("--tls_client_ca", config.tls_client_ca));
    RETURN_IF_ERROR(FirstCertificate(ca_file).status());
    files.client_ca = std::move(ca_file.text);
  }
  files.cert_chain = std::move(cert_file.text);
  files.private_key = std::move(key_file.text);
  return files;
}

}  // namespace quire::server
