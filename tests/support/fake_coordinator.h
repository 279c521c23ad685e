#pragma once

// A coordinator in the test's hands: accepts one attached process at a time on a socket of its own
// folder, shows what it says and says what the test wants.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/command/command.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::testing_support {

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FakeCoordinator {
 public:
  FakeCoordinator(const std::string& socket_path, int num_devices);
  ~FakeCoordinator();

  // Waits for a stream's Hello; the Welcome has been sent.
  v1::Hello AwaitHello();
  // Waits for the next message for which `wanted` holds; others before it are thrown away.
  v1::FromProcess Await(const std::function<bool(const v1::FromProcess&)>& wanted);
  // The lane has reached the value.
  void AwaitProgress(uint32_t generation, uint32_t lane, uint64_t value);

  void Send(const v1::ToProcess& message);
  void SendStart(uint32_t generation);
  void SendQuiesce(uint32_t generation);
  void SendCommands(uint32_t generation, const std::vector<command::Command>& commands);
  // Ends the stream as a coordinator's death does.
  void BreakStream();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A program of build/bin with arguments and additional environment; killed at the end if it still
// runs.
class SpawnedProgram {
 public:
  SpawnedProgram(const std::string& name, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment);
  ~SpawnedProgram();

  void Signal(int signal);  // nothing when it has ended
  bool Ended();             // looks, does not wait
  // Waits for its end: the exit code, or minus the signal that killed it.
  int Wait();

 private:
  int pid_ = -1;
};

}  // namespace harmony::testing_support
