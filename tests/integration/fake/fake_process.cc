// Stands in for coordinator, swapper and workers in the tests of the launcher and the client: it is
// started by the name of the one it plays, says what it was given, and waits for SIGTERM. The fake
// coordinator serves one make-believe job, whose steps survive it.
//
// Files in $FAKE_DIR control it; NAME is coordinator, swapper, worker-host or worker-N:
//   NAME.exit      exit at once with the code in it
//   NAME.stubborn  ignore SIGTERM
//   NAME.silent    give the launcher no sign of life
//   submit_error   Submit fails with this text (InvalidArgument)
//   job_error      the job fails at step 2 with this text
//   steps          of the job; step_ms: of each

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/ipc/heartbeat.h"
#include "common/rpc/channel.h"
#include "harmony/v1/coordinator.grpc.pb.h"

namespace harmony::fake {
namespace {

namespace fs = std::filesystem;

fs::path ControlPath(const std::string& name) {
  const char* dir = getenv("FAKE_DIR");
  return fs::path(dir == nullptr ? "." : dir) / name;
}

std::string ReadControl(const std::string& name) {
  std::ifstream file(ControlPath(name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool HasControl(const std::string& name) { return fs::exists(ControlPath(name)); }

int64_t NumberControl(const std::string& name, int64_t otherwise) {
  std::string text = ReadControl(name);
  return text.empty() ? otherwise : std::stoll(text);
}

std::string Flag(const std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == flag) return arguments[i + 1];
  }
  return "";
}

// One job, advanced by a thread; its step is kept in a file of the state directory.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(const std::string& state_dir)
      : file_(state_dir + "/fake_job"), steps_(NumberControl("steps", 5)) {
    std::ifstream saved(file_);
    int64_t step = 0;
    if (saved >> step) {
      job_.set_state(v1::JOB_STATE_RUNNING);
      job_.set_completed_steps(step);
    }
    std::getline(saved >> std::ws, output_dir_);
    worker_ = std::thread([this] { Advance(); });
  }
  ~FakeCoordinator() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                      v1::SubmitResponse* response) override {
    std::string error = ReadControl("submit_error");
    if (!error.empty()) return {grpc::StatusCode::INVALID_ARGUMENT, error};
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& text : request->overrides()) {
      if (text.rfind("output_dir=", 0) == 0) output_dir_ = text.substr(11);
    }
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_job_yaml(request->job_yaml());
    Save();
    changed_.notify_all();
    response->set_job_id("job-1");
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest* request, v1::Job* job) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!Has(request->job_id()))
      return {grpc::StatusCode::NOT_FOUND, absl::StrCat("no job ", request->job_id())};
    *job = Snapshot().job();
    return grpc::Status::OK;
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse* list) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Has("job-1")) *list->add_jobs() = Snapshot().job();
    return grpc::Status::OK;
  }

  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest*, v1::Job* job) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (job_.state() == v1::JOB_STATE_RUNNING) job_.set_state(v1::JOB_STATE_CANCELLED);
    *job = Snapshot().job();
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status GetLog(grpc::ServerContext*, const v1::GetLogRequest*,
                      v1::GetLogResponse* log) override {
    log->add_lines()->set_text("a fault");
    log->add_lines()->set_text("a recovery");
    return grpc::Status::OK;
  }

  grpc::Status GetTimeline(grpc::ServerContext*, const v1::GetTimelineRequest*,
                           v1::Timeline* timeline) override {
    v1::TimelineEvent* event = timeline->add_events();
    event->set_lane("device 0 compute");
    event->set_name("forward layers 0-1");
    event->set_start_ns(5'000);
    event->set_end_ns(9'000);
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::Progress>* writer) override {
    std::unique_lock<std::mutex> lock(mutex_);
    int64_t shown = -1;
    while (!context->IsCancelled() && !stop_) {
      v1::Progress progress = Snapshot();
      bool ended = job_.state() > v1::JOB_STATE_PAUSED;
      if (progress.step() != shown || ended) {
        shown = progress.step();
        lock.unlock();
        writer->Write(progress);
        lock.lock();
      }
      if (ended) return grpc::Status::OK;
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return {grpc::StatusCode::UNAVAILABLE, "going down"};
  }

 private:
  bool Has(const std::string& job_id) const {
    return job_.state() != v1::JOB_STATE_UNSPECIFIED && job_id == "job-1";
  }

  v1::Progress Snapshot() const {
    v1::Progress progress;
    *progress.mutable_job() = job_;
    progress.mutable_job()->set_job_id("job-1");
    progress.mutable_job()->set_max_steps(steps_);
    progress.mutable_job()->set_output_dir(output_dir_);
    progress.set_step(job_.completed_steps());
    progress.set_loss(5.0 / static_cast<double>(1 + job_.completed_steps()));
    progress.set_learning_rate(3e-4);
    progress.set_tokens_per_second(1000);
    v1::DeviceProgress* device = progress.add_devices();
    device->set_spec("sim:mem=8MiB");
    device->set_state("running");
    device->set_memory_cap(8 << 20);
    device->set_peak_bytes(6 << 20);
    return progress;
  }

  // Atomic, since the fake may be killed at any moment too.
  void Save() const {
    std::ofstream(file_ + ".next") << job_.completed_steps() << "\n" << output_dir_ << "\n";
    fs::rename(file_ + ".next", file_);
  }

  void Advance() {
    std::chrono::milliseconds pause(NumberControl("step_ms", 10));
    std::string error = ReadControl("job_error");
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, pause);
      if (job_.state() != v1::JOB_STATE_RUNNING) continue;
      job_.set_completed_steps(job_.completed_steps() + 1);
      Save();
      if (job_.completed_steps() >= steps_) job_.set_state(v1::JOB_STATE_FINISHED);
      if (!error.empty() && job_.completed_steps() == 2) {
        job_.set_state(v1::JOB_STATE_FAILED);
        job_.set_error(error);
        job_.set_error_code(grpc::StatusCode::INTERNAL);
      }
      changed_.notify_all();
    }
  }

  const std::string file_;
  const int64_t steps_;
  std::string output_dir_;
  std::mutex mutex_;
  std::condition_variable changed_;
  v1::Job job_;
  bool stop_ = false;
  std::thread worker_;
};

void Serve(const std::vector<std::string>& arguments, const sigset_t& stop) {
  std::string socket = Flag(arguments, "--socket");
  unlink(socket.c_str());
  FakeCoordinator service(Flag(arguments, "--state-dir"));
  grpc::ServerBuilder builder;
  rpc::ListenOnSocket(builder, socket);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  int signal = 0;
  sigwait(&stop, &signal);
  server->Shutdown(std::chrono::system_clock::now());
}

// What the process was given: arguments, the environment that matters, open memory.
void Describe(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) std::cout << argument << " ";
  for (const char* name : {"HARMONY_INCARNATION", "HARMONY_OWN_DEATHS", "HARMONY_DEVICE_FDS",
                           "OMP_WAIT_POLICY", "OMP_DYNAMIC", "OMP_PROC_BIND"}) {
    const char* value = getenv(name);
    std::cout << name << "=" << (value == nullptr ? "" : value) << " ";
  }
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    std::string target = fs::read_symlink(entry, error);
    struct stat info;
    if (target.find("memfd:") == std::string::npos || stat(entry.path().c_str(), &info) != 0) {
      continue;
    }
    std::cout << target.substr(0, target.find(' ')) << "=" << info.st_size << " ";
  }
  std::cout << std::endl;
}

// As long as the process lives, several times a second.
void BeatForEver() {
  absl::StatusOr<ipc::Heartbeat> heartbeat = ipc::Heartbeat::Inherited();
  if (!heartbeat.ok()) {
    std::cerr << heartbeat.status() << std::endl;
    return;
  }
  std::thread([heartbeat = *std::move(heartbeat)]() mutable {
    for (;;) {
      heartbeat.Beat();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }).detach();
}

int Main(std::vector<std::string> arguments) {
  std::string name = fs::path(arguments[0]).filename();
  name = name.substr(name.find('-') + 1);
  if (name == "worker") absl::StrAppend(&name, "-", Flag(arguments, "--device"));
  Describe(arguments);
  if (arguments.size() > 1 && arguments[1] == "--plan-once") return 0;
  if (HasControl(name + ".exit")) {
    std::cerr << "error: " << name << " does not like it" << std::endl;
    return static_cast<int>(NumberControl(name + ".exit", 0));
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, HasControl(name + ".stubborn") ? SIGUSR1 : SIGTERM);
  if (HasControl(name + ".stubborn")) signal(SIGTERM, SIG_IGN);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  if (!HasControl(name + ".silent")) BeatForEver();
  if (name == "coordinator") {
    Serve(arguments, stop);
  } else {
    int signal = 0;
    sigwait(&stop, &signal);
  }
  return 0;
}

}  // namespace
}  // namespace harmony::fake

int main(int argc, char** argv) { return harmony::fake::Main({argv, argv + argc}); }
