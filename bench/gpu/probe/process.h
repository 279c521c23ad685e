#pragma once

// The processes of the probe: all run the same program in another role, started by fork and exec,
// so that none inherits the driver's state. Each has one socket to the process that started it.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace harmony::bench {

// What every process of a run is told.
struct Settings {
  int device = 0;
  bool quick = false;
  std::string cublas;  // path of libcublas; empty: it is searched for
};
Settings& TheSettings();

struct Message {
  bool ended = false;  // the other side is gone
  std::string text;
  int descriptor = -1;  // owned by the receiver
};

// One end of a socket that keeps messages apart.
class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}

  // Never fails because the reader is gone: whoever waits for an answer notices that.
  void Send(const std::string& text, int descriptor_to_pass = -1) const;
  // Blocks. A part that waits in vain is ended by its time limit.
  Message Receive() const;
  // True when Receive would not block.
  bool Readable(int wait_ms = 0) const;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// The socket to the process that started this one.
const Channel& Parent();

// A started process. Ends it when it goes out of scope.
class Process {
 public:
  // `role`: a name of RunRole (roles.h).
  Process(const std::string& role, const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Send(const std::string& text, int descriptor_to_pass = -1) const;
  // The next message, which has to begin with `word`; the rest of it. Otherwise this process fails.
  std::string Expect(const std::string& word, int* descriptor = nullptr) const;
  std::string Ask(const std::string& text, const std::string& word) const;

  // Kills it and, where it leads one, its whole process group, without waiting.
  void Kill() const;
  // Waits for a killed process and its group to be gone, but not for ever: one within a call of the
  // driver that does not return cannot be ended.
  void Reap() const;
  // Returns when it has exited, without reaping it. The time of CLOCK_MONOTONIC in seconds.
  double AwaitExit() const;
  // Tells it to end by closing its socket, and waits.
  void End();

  const Channel& channel() const { return channel_; }
  pid_t pid() const { return pid_; }
  bool has_pidfd() const { return pidfd_ >= 0; }

 private:
  const std::string role_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  Channel channel_{-1};
};

// Says why to the parent, which passes it on, and ends this process.
[[noreturn]] void Fail(const std::string& why);

// printf into a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::vector<std::string> Words(const std::string& text);
// Numbers of a message; fewer than `count` fail this process.
std::vector<double> Numbers(const std::string& text, size_t count);

double NowSeconds();
// A pause between two looks: short against a copy, long enough to leave the driver's locks alone.
void Nap(int microseconds = 20);

}  // namespace harmony::bench
