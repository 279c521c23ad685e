#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/ipc/fd_passing.h"

namespace harmony::client {

// A log that grows, by its name, as `tail -F` follows it: what is appended, and once the name
// stands for another file (rotated, made anew) or the file was cut, that from its beginning. One
// thread. A file that was cut and has grown beyond its old size between two looks goes on there.
class FollowedFile {
 public:
  // `last_lines`: how many of the lines that are there now come first; negative: all of them.
  FollowedFile(std::string path, int last_lines);

  // Whole lines that came since the last look; the rest of a file without a line's end when its
  // name is another's. A file that is not there has none, and may come (back).
  std::vector<std::string> TakeLines();

 private:
  void ReadOn(std::vector<std::string>* lines);
  void EndLine(std::vector<std::string>* lines);
  bool IsReplaced() const;

  const std::string path_;
  int last_lines_;  // of the first look; negative: all
  ipc::UniqueFd fd_;
  int64_t read_ = 0;     // bytes of the file that is open
  std::string partial_;  // the beginning of a line whose end has not been written yet
};

}  // namespace harmony::client
