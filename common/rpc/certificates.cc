#include "common/rpc/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace harmony::rpc {
namespace {

constexpr int64_t kMostFileBytes = 1 << 20;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, Free>;

std::unique_ptr<BIO, Free> Reader(const std::string& text) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm fields = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&fields));
}

absl::StatusOr<std::vector<Certificate>> ParseCertificates(const std::string& text,
                                                           const std::string& where) {
  std::vector<Certificate> all;
  const auto reader = Reader(text);
  while (X509* const one = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(one);
  }
  ERR_clear_error();
  if (!all.empty()) return all;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": no certificate in it; PEM is expected, -----BEGIN CERTIFICATE-----"));
}

absl::Status CheckTimes(const X509* certificate, const std::string& where, absl::Time now) {
  const absl::Time from = TimeOf(X509_get0_notBefore(certificate));
  const absl::Time until = TimeOf(X509_get0_notAfter(certificate));
  if (now > until) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": expired on ", UtcTimeStamp(until), ": have a new one signed"));
  }
  if (now < from) {
    return absl::FailedPreconditionError(absl::StrCat(where, ": is valid from ", UtcTimeStamp(from),
                                                      " on, and now it is ", UtcTimeStamp(now),
                                                      ": is the clock right?"));
  }
  return absl::OkStatus();
}

// While authorities change, an old one stays in the file.
absl::Status CheckAnyIsValid(const std::vector<Certificate>& all, const std::string& where,
                             absl::Time now) {
  absl::Status first;
  for (const Certificate& one : all) {
    const absl::Status status = CheckTimes(one.get(), where, now);
    if (status.ok()) return absl::OkStatus();
    first.Update(status);
  }
  return first;
}

absl::Status CheckKeyMode(const std::string& path, const std::string& where) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return io::ErrnoStatus(errno, "look at", path);
  const mode_t allowed = info.st_uid == 0 ? 0740 : 0700;
  if ((info.st_mode & 0777 & ~allowed) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(where, ": others may read or write this private key: chmod 600 ", path));
}

// Nobody is asked for a passphrase.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::Status CheckKey(const std::string& key_text, X509* certificate, const std::string& where,
                      const std::string& certificate_where) {
  const auto reader = Reader(key_text);
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr));
  const bool matches = key != nullptr && X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": no private key in it, or one with a passphrase; PEM without one is expected"));
  }
  if (matches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": is not the key of the certificate ", certificate_where));
}

absl::StatusOr<std::string> Read(const std::string& path, const std::string& where) {
  absl::StatusOr<std::string> text = io::ReadWholeFile(path, kMostFileBytes);
  if (!text.ok()) return WithContext(text.status(), where);
  return text;
}

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsPaths& paths, const TlsOptionNames& names,
                                      absl::Time now) {
  for (const auto& [path, name] :
       {std::pair(&paths.certificate, names.certificate), std::pair(&paths.key, names.key),
        std::pair(&paths.ca, names.ca)}) {
    if (!path->empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is missing: TLS takes ", names.certificate, ", ", names.key, " and ",
                     names.ca, ", for both sides show a certificate"));
  }
  const std::string certificate_where = absl::StrCat(names.certificate, " ", paths.certificate);
  const std::string key_where = absl::StrCat(names.key, " ", paths.key);
  const std::string ca_where = absl::StrCat(names.ca, " ", paths.ca);
  TlsTexts texts;
  HARMONY_ASSIGN_OR_RETURN(texts.certificate, Read(paths.certificate, certificate_where));
  HARMONY_ASSIGN_OR_RETURN(texts.key, Read(paths.key, key_where));
  HARMONY_ASSIGN_OR_RETURN(texts.ca, Read(paths.ca, ca_where));
  HARMONY_RETURN_IF_ERROR(CheckKeyMode(paths.key, key_where));
  HARMONY_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                           ParseCertificates(texts.certificate, certificate_where));
  for (const Certificate& one : chain) {
    HARMONY_RETURN_IF_ERROR(CheckTimes(one.get(), certificate_where, now));
  }
  HARMONY_RETURN_IF_ERROR(CheckKey(texts.key, chain.front().get(), key_where, paths.certificate));
  HARMONY_ASSIGN_OR_RETURN(const std::vector<Certificate> roots,
                           ParseCertificates(texts.ca, ca_where));
  HARMONY_RETURN_IF_ERROR(CheckAnyIsValid(roots, ca_where, now));
  return texts;
}

}  // namespace harmony::rpc
