#pragma once

// Who may reach the coordinator, and how, as `harmony up` is told. It is the coordinator that reads
// and checks all of it.

#include <string>
#include <vector>

namespace harmony::client {

struct AccessOptions {
  std::string socket_group;
  std::string listen;
  std::string tls_certificate, tls_key, tls_client_ca;
  std::vector<std::string> allow;

  // The same as arguments of a command line, of `harmony up` or of the coordinator.
  std::vector<std::string> ToArguments() const {
    std::vector<std::string> arguments;
    const auto add = [&arguments](const char* option, const std::string& value) {
      if (!value.empty()) arguments.insert(arguments.end(), {option, value});
    };
    add("--socket-group", socket_group);
    add("--listen", listen);
    add("--tls-cert", tls_certificate);
    add("--tls-key", tls_key);
    add("--tls-client-ca", tls_client_ca);
    for (const std::string& rule : allow) add("--allow", rule);
    return arguments;
  }
};

}  // namespace harmony::client
