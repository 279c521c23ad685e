#include "tests/support/fake_coordinator.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/command_codec.h"
#include "harmony/v1/attach.grpc.pb.h"

namespace harmony::testing_support {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "harmony-test-XXXXXX";
  path_ = mkdtemp(pattern.data());
}
TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

class FakeCoordinator::Impl : public v1::Attach::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ToProcess, v1::FromProcess>;

  Impl(const std::string& socket_path, int num_devices) : num_devices_(num_devices) {
    grpc::ServerBuilder builder;
    rpc::ListenOnSocket(builder, socket_path);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Impl() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    v1::FromProcess message;
    while (stream->Read(&message)) {
      std::lock_guard lock(mutex);
      if (message.has_hello()) {
        v1::ToProcess welcome;
        welcome.mutable_welcome()->set_num_devices(num_devices_);
        stream->Write(welcome);
        stream_ = stream;
        context_ = context;
        inbox.clear();
        hellos.push_back(message.hello());
      } else {
        inbox.push_back(message);
      }
      changed.notify_all();
    }
    std::lock_guard lock(mutex);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }

  void Send(const v1::ToProcess& message) {
    std::lock_guard lock(mutex);
    if (stream_ != nullptr) stream_->Write(message);
  }
  void Break() {
    std::lock_guard lock(mutex);
    if (stream_ != nullptr) context_->TryCancel();
  }

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<v1::FromProcess> inbox;
  std::deque<v1::Hello> hellos;

 private:
  const int num_devices_;
  Stream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
};

FakeCoordinator::FakeCoordinator(const std::string& socket_path, int num_devices)
    : impl_(std::make_unique<Impl>(socket_path, num_devices)) {}
FakeCoordinator::~FakeCoordinator() = default;

v1::Hello FakeCoordinator::AwaitHello() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return !impl_->hellos.empty(); });
  v1::Hello hello = std::move(impl_->hellos.front());
  impl_->hellos.pop_front();
  return hello;
}

v1::FromProcess FakeCoordinator::Await(const std::function<bool(const v1::FromProcess&)>& wanted) {
  std::unique_lock lock(impl_->mutex);
  while (true) {
    impl_->changed.wait(lock, [&] { return !impl_->inbox.empty(); });
    const v1::FromProcess message = std::move(impl_->inbox.front());
    impl_->inbox.pop_front();
    if (wanted(message)) return message;
  }
}

void FakeCoordinator::AwaitProgress(uint32_t generation, uint32_t lane, uint64_t value) {
  Await([=](const v1::FromProcess& message) {
    const v1::LaneProgress& progress = message.progress();
    return message.has_progress() && progress.generation() == generation &&
           progress.lane() == lane && progress.value() >= value;
  });
}

void FakeCoordinator::Send(const v1::ToProcess& message) { impl_->Send(message); }

void FakeCoordinator::SendStart(uint32_t generation) {
  v1::ToProcess message;
  message.mutable_start()->set_generation(generation);
  Send(message);
}

void FakeCoordinator::SendQuiesce(uint32_t generation) {
  v1::ToProcess message;
  message.mutable_quiesce()->set_generation(generation);
  Send(message);
}

void FakeCoordinator::SendCommands(uint32_t generation,
                                   const std::vector<command::Command>& commands) {
  v1::ToProcess message;
  message.mutable_commands()->set_generation(generation);
  for (const command::Command& command : commands) {
    rpc::EncodeCommand(command, message.mutable_commands()->add_commands());
  }
  Send(message);
}

void FakeCoordinator::BreakStream() { impl_->Break(); }

SpawnedProgram::SpawnedProgram(const std::string& name, const std::vector<std::string>& arguments,
                               const std::vector<std::string>& environment) {
  const std::string path = std::string(HARMONY_BIN_DIR) + "/" + name;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
  execv(path.c_str(), argv.data());
  _exit(127);
}

SpawnedProgram::~SpawnedProgram() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

void SpawnedProgram::Signal(int signal) {
  if (pid_ >= 0) kill(pid_, signal);
}

bool SpawnedProgram::Ended() {
  if (pid_ >= 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

int SpawnedProgram::Wait() {
  int status = 0;
  if (pid_ < 0) return 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace harmony::testing_support
