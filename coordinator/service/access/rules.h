#pragma once

// Who may do what through the public service: by the user at the other end of a Unix socket, or by
// the name in the certificate of a TLS connection. No threads, no sockets; accounts are looked up
// when rules are parsed.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::service {

// In this order: each includes those before it.
enum class Access {
  kNone,    // no call is answered
  kRead,    // what there is and what happens: jobs, progress, logs, traces
  kChange,  // all else: what queues, stops or forgets jobs, or reads files with the service's
            // rights
};

// What a call needs, by its path ("/harmony.v1.Coordinator/List"). Health and reflection are read.
// A method that has no row needs kChange, and fails the test of this table.
Access NeededFor(absl::string_view path);
// Whether NeededFor has a row for it.
bool HasAccessRow(absl::string_view path);

class AccessRules {
 public:
  // Each "user:NAME=read|change", "group:NAME=..." or "cert:NAME=..."; users and groups may be
  // numbers. `owner` and root may change. InvalidArgument says what is wrong and what is expected.
  static absl::StatusOr<AccessRules> Parse(const std::vector<std::string>& texts, uid_t owner);

  // Of whom the socket's mode has let in: kRead where no rule says more.
  Access OfUser(uid_t user, const std::vector<gid_t>& groups) const;
  // `owner` or root, whom others are not to keep out.
  bool IsOwner(uid_t user) const { return user == owner_ || user == 0; }
  // Of who has proved to bear these names: the most that any of them has; kNone without a rule.
  Access OfCertificate(const std::vector<std::string>& names) const;
  // Whether any rule is about certificates: without one, nobody could call through TLS.
  bool allows_certificates() const { return !certificates_.empty(); }

 private:
  uid_t owner_ = 0;
  std::map<uid_t, Access> users_;
  std::map<gid_t, Access> groups_;
  std::map<std::string, Access> certificates_;
};

// "ann (uid 1001)", or "uid 1001" of a user without an account.
std::string UserName(uid_t user);
// The number of a group that is named, or given by its number. NotFound.
absl::StatusOr<gid_t> FindGroup(const std::string& name);

}  // namespace harmony::service
