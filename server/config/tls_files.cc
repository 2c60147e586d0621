#include "server/config/tls_files.h"

#include <ctime>
#include <memory>
#include <string_view>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/logging.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace quire::server {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;

constexpr absl::Duration kExpiryWarning = absl::Hours(14 * 24);

struct PemFile {
  std::string_view flag;
  std::string path;
  std::string text;

  absl::Status Wrong(std::string_view what) const {
    ::ERR_clear_error();  // the next reader of OpenSSL's error queue must not find this error
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", flag, path, what));
  }
  Bio Open() const {
    return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free);
  }
};

absl::StatusOr<PemFile> Read(std::string_view flag, const std::string& path) {
  PemFile file{.flag = flag, .path = path};
  absl::StatusOr<std::string> text = base::ReadSmallFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", flag, text.status().message()));
  }
  file.text = *std::move(text);
  return file;
}

absl::StatusOr<Certificate> FirstCertificate(const PemFile& file) {
  Certificate certificate(::PEM_read_bio_X509(file.Open().get(), nullptr, nullptr, nullptr),
                          &::X509_free);
  if (certificate == nullptr) return file.Wrong("holds no PEM certificate");
  return certificate;
}

absl::Time NotAfter(const X509* certificate) {
  std::tm time = {};
  if (::ASN1_TIME_to_tm(::X509_get0_notAfter(certificate), &time) != 1) {
    return absl::InfiniteFuture();
  }
  return absl::FromTM(time, absl::UTCTimeZone());
}

void WarnOfExpiry(const PemFile& file, absl::Time not_after) {
  const absl::Time now = absl::Now();
  if (not_after > now + kExpiryWarning) return;
  base::Log(
      base::LogLevel::kWarning, "tls",
      not_after <= now ? "the certificate has expired: clients will refuse it"
                       : "the certificate expires soon",
      {{"file", file.path},
       {"not_after", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", not_after, absl::UTCTimeZone())}});
}

// Rejects an encrypted key. By default OpenSSL would ask for a password on the terminal.
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
  files.not_after = NotAfter(certificate.get());
  WarnOfExpiry(cert_file, files.not_after);
  files.cert_chain = std::move(cert_file.text);
  files.private_key = std::move(key_file.text);
  return files;
}

}  // namespace quire::server
