#include "common/rpc/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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
        "' is a network address, and a socket is a path: TCP is served with TLS only, by --listen "
        "of `harmony up`, and reached by --address of the other commands"));
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

std::string AttachSocketOf(absl::string_view socket_path) {
  return absl::StrCat(socket_path.substr(0, socket_path.rfind('/') + 1), "attach.sock");
}

std::string HostPort::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, absl::string_view what) {
  const size_t colon = text.rfind(':');
  absl::string_view host = text.substr(0, colon == absl::string_view::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  HostPort parsed;
  const bool number = colon != absl::string_view::npos &&
                      absl::SimpleAtoi(text.substr(colon + 1), &parsed.port) && parsed.port >= 0 &&
                      parsed.port <= 65535;
  if (!number || host.empty() || (!bracketed && absl::StrContains(host, ':')) ||
      absl::StrContains(host, '/')) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", text,
                     ": HOST:PORT is expected, as localhost:7443, 10.0.0.7:7443 or [::1]:7443"));
  }
  parsed.host = std::string(host);
  return parsed;
}

std::string NetworkOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return text;
  }
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof(text));
    return text;
  }
  std::memset(&v6.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &v6, text, sizeof(text));
  return absl::StrCat(text, "/64");
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
