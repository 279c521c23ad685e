#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace harmony::client {

// Standard output for a command that must not be held up by who reads it, as by a full pipe or a
// terminal that was stopped. One thread.
class Output {
 public:
  // `interrupt`: while this can be read from, as a signal's descriptor can, nothing waits; -1:
  // none.
  explicit Output(int interrupt = -1) : interrupt_(interrupt) {}

  // Waits until all is written. What finds no room when nothing waits is kept, and written before
  // what comes next; up to a megabyte.
  void Write(absl::string_view text);
  // From now on nothing waits.
  void Hurry() { hurried_ = true; }

 private:
  const int interrupt_;
  bool hurried_ = false;
  std::string pending_;
};

}  // namespace harmony::client
