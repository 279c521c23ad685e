// harmony-segment-dump PATH: prints a shared segment, e.g. /proc/1234/fd/5.

#include <cstdio>

#include "common/base/status.h"
#include "common/ipc/dump.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: harmony-segment-dump /proc/PID/fd/N\n");
    return 2;
  }
  const absl::StatusOr<std::string> text = harmony::ipc::DumpSegmentFile(argv[1]);
  if (!text.ok()) {
    std::fprintf(stderr, "harmony-segment-dump: %s\n", text.status().ToString().c_str());
    return harmony::ExitCodeOf(text.status());
  }
  std::fputs(text->c_str(), stdout);
  return 0;
}
