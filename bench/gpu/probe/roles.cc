#include "bench/gpu/probe/roles.h"

#include <unistd.h>

#include <cstdlib>

#include "bench/gpu/probe/driver.h"

namespace harmony::bench {
namespace {

void RunCheck(const Arguments&) {
  const std::string why_not = OpenDriver();
  if (!why_not.empty()) Fail(why_not);
  Parent().Send("good");
}

void RunPartByNumber(const Arguments& arguments) {
  for (const Part& part : Parts()) {
    if (!arguments.empty() && part.number == atoi(arguments[0].c_str())) part.run();
  }
  Parent().Send("done");
}

}  // namespace

const std::vector<Part>& Parts() {
  static const std::vector<Part> parts = {
      {1, "facts", "what device and host are these?", 20, RunFacts},
      {2, "region", "does device memory outlive its maker and its users?", 60, RunRegion},
      {3, "contexts", "what does a context take of the device's memory?", 60, RunContexts},
      {4, "pinning", "how long does pinning host memory take?", 90, RunPinning},
      {5, "copies", "how fast are copies, and does a process of its own slow them?", 90, RunCopies},
      {6, "overlap", "do copies of another process run beside products?", 150, RunOverlap},
      {7, "death", "does anything write after a process was killed amid copies?", 60, RunDeath},
      {8, "waits", "what do waits within a stream take?", 20, RunWaits},
  };
  return parts;
}

int RunRole(const std::string& role, const Arguments& arguments) {
  const struct {
    const char* name;
    void (*run)(const Arguments&);
  } kRoles[] = {
      {"check", RunCheck},       {"part", RunPartByNumber}, {"maker", RunMaker},
      {"importer", RunImporter}, {"observer", RunObserver}, {"context", RunContext},
      {"watcher", RunWatcher},   {"copier", RunCopier},     {"worker", RunWorker},
  };
  for (const auto& [name, run] : kRoles) {
    if (role != name) continue;
    run(arguments);
    // Without the destructors of the driver, which could wait for work that does not end.
    _exit(0);
  }
  return 1;
}

}  // namespace harmony::bench
