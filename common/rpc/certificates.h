#pragma once

// Certificates and keys for TLS, in files (PEM): looked at before they are used, so that what is
// wrong with them is said by name and not found in a failed handshake.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace harmony::rpc {

struct TlsPaths {
  std::string certificate, key;  // of this side; the certificate with those between it and the CA
  std::string ca;                // that has signed the other side's
};

// What the files hold.
struct TlsTexts {
  std::string certificate, key, ca;
};

// How options name the three, for messages.
struct TlsOptionNames {
  absl::string_view certificate = "--tls-cert", key = "--tls-key", ca = "--tls-ca";
};

// Reads and checks them. InvalidArgument: one is not given, not PEM, or the key is not that of the
// certificate; NotFound or FailedPrecondition: one cannot be read, is expired or not valid yet at
// `now`, or the key can be read by others (a key of root may be readable for its group).
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsPaths& paths, const TlsOptionNames& names,
                                      absl::Time now);

}  // namespace harmony::rpc
