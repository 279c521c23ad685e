#pragma once

// What the declaration of a command line shows to people, for those who write about it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace harmony::client {

// In the order of their declaration, and without what is hidden (an empty group).
std::vector<const CLI::App*> ShownCommands(const CLI::App& app);
std::vector<const CLI::Option*> ShownOptions(const CLI::App& app);
// Those without dashes, in their order.
std::vector<const CLI::Option*> Arguments(const CLI::App& app);

// Null when there is none of that name; hidden ones can be found.
const CLI::App* FindCommand(const CLI::App& app, const std::string& name);

bool TakesValue(const CLI::Option& option);

}  // namespace harmony::client
