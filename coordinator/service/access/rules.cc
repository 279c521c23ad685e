#include "coordinator/service/access/rules.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace harmony::service {
namespace {

struct Row {
  absl::string_view path;  // of a method, or of all that begin with it where it ends with '/'
  Access needed;
};

// Plan is no reading: it reads whatever files its job names, with the service's rights, and
// searches for seconds.
constexpr std::array kRows = {
    Row{"/harmony.v1.Coordinator/Submit", Access::kChange},
    Row{"/harmony.v1.Coordinator/Get", Access::kRead},
    Row{"/harmony.v1.Coordinator/List", Access::kRead},
    Row{"/harmony.v1.Coordinator/Cancel", Access::kChange},
    Row{"/harmony.v1.Coordinator/Pause", Access::kChange},
    Row{"/harmony.v1.Coordinator/Resume", Access::kChange},
    Row{"/harmony.v1.Coordinator/Plan", Access::kChange},
    Row{"/harmony.v1.Coordinator/Watch", Access::kRead},
    Row{"/harmony.v1.Coordinator/GetTimeline", Access::kRead},
    Row{"/harmony.v1.Coordinator/GetLog", Access::kRead},
    Row{"/harmony.v1.Coordinator/Prune", Access::kChange},
    Row{"/grpc.health.v1.Health/", Access::kRead},
    Row{"/grpc.reflection.v1alpha.ServerReflection/", Access::kRead},
};

const Row* FindRow(absl::string_view path) {
  for (const Row& row : kRows) {
    if (row.path.back() == '/' ? absl::StartsWith(path, row.path) : path == row.path) return &row;
  }
  return nullptr;
}

// What the functions for accounts that threads may call write an entry's texts to.
using Texts = std::array<char, 64 << 10>;

absl::StatusOr<uid_t> FindUser(const std::string& name) {
  if (uid_t number = 0; absl::SimpleAtoi(name, &number)) return number;
  const auto texts = std::make_unique<Texts>();
  passwd entry = {}, *found = nullptr;
  getpwnam_r(name.c_str(), &entry, texts->data(), texts->size(), &found);
  if (found != nullptr) return found->pw_uid;
  return absl::NotFoundError(absl::StrCat("there is no user '", name, "'"));
}

// Two rules about the same: the greater holds.
template <typename Key>
void Grant(std::map<Key, Access>& all, const Key& key, Access access) {
  Access& granted = all.try_emplace(key, access).first->second;
  granted = std::max(granted, access);
}

template <typename Key>
Access Granted(const std::map<Key, Access>& all, const Key& key) {
  const auto found = all.find(key);
  return found == all.end() ? Access::kNone : found->second;
}

}  // namespace

Access NeededFor(absl::string_view path) {
  const Row* const row = FindRow(path);
  return row == nullptr ? Access::kChange : row->needed;
}

bool HasAccessRow(absl::string_view path) { return FindRow(path) != nullptr; }

absl::StatusOr<AccessRules> AccessRules::Parse(const std::vector<std::string>& texts, uid_t owner) {
  AccessRules rules;
  rules.owner_ = owner;
  for (const std::string& text : texts) {
    const auto wrong = [&text](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--allow ", text, ": ", why,
          "; user:NAME=read|change, group:NAME=read|change or cert:NAME=read|change is expected"));
    };
    // From the right: the name of a certificate may be a URI with '='.
    const size_t equals = text.rfind('='), colon = text.find(':');
    if (equals == std::string::npos || colon == std::string::npos || colon > equals) {
      return wrong("this is no rule");
    }
    const std::string kind = text.substr(0, colon), right = text.substr(equals + 1);
    const std::string name = text.substr(colon + 1, equals - colon - 1);
    if (name.empty()) return wrong("nobody is named");
    if (right != "read" && right != "change") {
      return wrong(absl::StrCat("'", right, "' is no right"));
    }
    const Access access = right == "read" ? Access::kRead : Access::kChange;
    if (kind == "user") {
      const absl::StatusOr<uid_t> user = FindUser(name);
      if (!user.ok()) return wrong(user.status().message());
      Grant(rules.users_, *user, access);
    } else if (kind == "group") {
      const absl::StatusOr<gid_t> group = FindGroup(name);
      if (!group.ok()) return wrong(group.status().message());
      Grant(rules.groups_, *group, access);
    } else if (kind == "cert") {
      Grant(rules.certificates_, name, access);
    } else {
      return wrong(absl::StrCat("'", kind, "' is neither user, group nor cert"));
    }
  }
  return rules;
}

Access AccessRules::OfUser(uid_t user, const std::vector<gid_t>& groups) const {
  if (IsOwner(user)) return Access::kChange;
  Access access = std::max(Access::kRead, Granted(users_, user));
  for (const gid_t group : groups) access = std::max(access, Granted(groups_, group));
  return access;
}

Access AccessRules::OfCertificate(const std::vector<std::string>& names) const {
  Access access = Access::kNone;
  for (const std::string& name : names) access = std::max(access, Granted(certificates_, name));
  return access;
}

std::string UserName(uid_t user) {
  const auto texts = std::make_unique<Texts>();
  passwd entry = {}, *found = nullptr;
  getpwuid_r(user, &entry, texts->data(), texts->size(), &found);
  if (found == nullptr) return absl::StrCat("uid ", user);
  return absl::StrCat(found->pw_name, " (uid ", user, ")");
}

absl::StatusOr<gid_t> FindGroup(const std::string& name) {
  if (gid_t number = 0; absl::SimpleAtoi(name, &number)) return number;
  const auto texts = std::make_unique<Texts>();
  group entry = {}, *found = nullptr;
  getgrnam_r(name.c_str(), &entry, texts->data(), texts->size(), &found);
  if (found != nullptr) return found->gr_gid;
  return absl::NotFoundError(absl::StrCat("there is no group '", name, "'"));
}

}  // namespace harmony::service
