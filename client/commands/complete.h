#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace harmony::client {

// Prints what can stand at the end of `words`, a command line of `app` up to the cursor, for the
// script of a shell. It takes a few seconds at most, since somebody waits at a prompt, and says
// nothing about what it cannot find.
int CompleteCommand(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace harmony::client
