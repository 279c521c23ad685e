#include "common/rpc/address.h"

#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace harmony::rpc {
namespace {

std::string EnvironmentOr(const char* name, absl::string_view fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : std::string(fallback);
}

// "host:port", "dns:...", "ipv4:..." and the like; a path always has a '/' or no ':'.
bool LooksLikeNetworkAddress(absl::string_view text) {
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:", "tcp:", "http:", "https:"}) {
    if (absl::StartsWithIgnoreCase(text, scheme)) return true;
  }
  return absl::StrContains(text, ':') && !absl::StrContains(text, '/');
}

}  // namespace

absl::StatusOr<std::string> ResolveSocketPath(absl::string_view option) {
  std::string text(option);
  if (text.empty()) text = EnvironmentOr("HARMONY_SOCKET", "");
  if (text.empty()) {
    const std::string runtime = EnvironmentOr("XDG_RUNTIME_DIR", "");
    const std::string folder =
        runtime.empty() ? EnvironmentOr("HOME", "/") + "/.harmony" : runtime + "/harmony";
    text = folder + "/coordinator.sock";
  }
  absl::string_view path = text;
  if (!absl::ConsumePrefix(&path, "unix://")) absl::ConsumePrefix(&path, "unix:");
  if (path.size() == text.size() && LooksLikeNetworkAddress(path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "socket '", text,
        "' is a network address: TCP is served with TLS only, and TLS is not built yet; give the "
        "path of a Unix-domain socket"));
  }
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat("socket '", text, "': no path"));
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(std::string(path), error).string();
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("socket '", text, "': ", error.message()));
  }
  const size_t limit = sizeof(sockaddr_un::sun_path) - 1;
  if (absolute.size() > limit) {
    return absl::InvalidArgumentError(absl::StrCat("socket path '", absolute, "' has ",
                                                   absolute.size(), " characters; at most ", limit,
                                                   " are possible"));
  }
  return absolute;
}

absl::Status MakeSocketFolder(absl::string_view socket_path) {
  const std::filesystem::path folder =
      std::filesystem::path(std::string(socket_path)).parent_path();
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  std::filesystem::create_directories(folder.parent_path(), error);
  if (error || (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot make the folder ", folder.string(),
        " for the socket: ", error ? error.message() : std::generic_category().message(errno)));
  }
  return absl::OkStatus();
}

std::string SocketTarget(absl::string_view socket_path) {
  return absl::StrCat("unix:", socket_path);
}

}  // namespace harmony::rpc
