#include "tests/support/mini_coordinator.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/ipc/segment.h"
#include "common/job/job_file.h"
#include "common/model/families/causal_lm.h"
#include "common/plan/arena_layout.h"
#include "common/rpc/channel.h"
#include "common/rpc/command_codec.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "harmony/v1/attach.grpc.pb.h"
#include "tests/support/fake_coordinator.h"

namespace harmony::testing_support {

class MiniCoordinator::Impl : public v1::Attach::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ToProcess, v1::FromProcess>;

  explicit Impl(MiniJob job)
      : job_(std::move(job)),
        model_(model::BuildModelSpec(*model::ParseModelConfig(job_.config_json, "config.json"),
                                     job_.plan.sequence_length)),
        devices_(*plan::ParseDevices(job_.devices)),
        costs_(model_, job_.plan, devices_),
        layout_(model_, job_.plan),
        table_(model_, job_.plan.num_microbatches, job_.plan.replicas),
        segment_(*ipc::Segment::Create(layout_.end() + MiB(32))),
        losses(static_cast<size_t>(job_.steps)) {
    ipc::SegmentJob extent;
    extent.id = "job";
    extent.record_count = table_.size();
    extent.cursor_count = ipc::CursorCount(model_);
    extent.extent = layout_.end();
    extent.persistent = layout_.persistent_bytes();
    status_ = segment_.AllocateJob(extent);
    (void)ipc::AllowInheritance(segment_.fd());
    for (const plan::DeviceSpec& device : devices_) {
      device_fds_.push_back(*ipc::CreateDeviceRegion(device.ordinal, device.memory));
      (void)ipc::AllowInheritance(device_fds_.back().get());
    }
    grpc::ServerBuilder builder;
    rpc::ListenOnSocket(builder, folder_.path() + "/socket");
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  ~Impl() override {
    programs_.clear();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Run() {
    if (!status_.ok()) return status_;
    runner::RunnerOptions options;
    options.dispatch.end_step = job_.steps;
    options.dispatch.save_steps = job_.spec.save_steps;
    options.max_generations_without_progress = 100;
    runner::JobRunner runner(model_, job_.plan, costs_, options);
    Spawn({runner::Role::kSwapper, 0});
    Spawn({runner::Role::kHostWorker, 0});
    for (const plan::DeviceSpec& device : devices_) Spawn({runner::Role::kWorker, device.ordinal});
    while (!ended_) {
      std::unique_lock lock(mutex_);
      runner::Event event = runner::Tick{};
      if (changed_.wait_for(lock, std::chrono::milliseconds(200),
                            [&] { return !events_.empty(); })) {
        event = std::move(events_.front());
        events_.pop_front();
      }
      lock.unlock();
      ++event_count;
      if (observer) observer(event_count);
      if (const auto* lost = std::get_if<runner::ProcessLost>(&event)) {
        // Its exit is confirmed before anybody hears of the loss.
        programs_[lost->process]->Signal(SIGKILL);
        programs_[lost->process]->Wait();
      }
      for (const runner::Action& action : runner.OnEvent(event, MonotonicClock().Now()))
        Carry(action);
      if (const auto* lost = std::get_if<runner::ProcessLost>(&event)) Spawn(lost->process);
      if (std::holds_alternative<runner::Tick>(event)) RespawnTheUnattached();
    }
    generation = runner.generation();
    return status_;
  }

  void Kill(const runner::ProcessId& process) { programs_[process]->Signal(SIGKILL); }

  std::vector<float> Weights(int block) const {
    const command::ObjectView view =
        *segment_.ReadRecord(table_.IndexOf({command::ObjectKind::kParameter, block, 0}));
    std::vector<float> weights(static_cast<size_t>(view.size.count()) / sizeof(float));
    std::memcpy(weights.data(), segment_.Arena(view.offset), weights.size() * sizeof(float));
    return weights;
  }

  grpc::Status Attach(grpc::ServerContext*, Stream* stream) override {
    v1::FromProcess message;
    if (!stream->Read(&message) || !message.has_hello()) return grpc::Status::OK;
    const runner::ProcessId process{static_cast<runner::Role>(message.hello().role() - 1),
                                    message.hello().device()};
    const uint32_t incarnation = message.hello().incarnation();
    {
      std::lock_guard lock(mutex_);
      streams_[process] = stream;
      stream->Write(Welcome());
      stream->Write(Setup());
    }
    while (stream->Read(&message)) Take(process, incarnation, message);
    std::lock_guard lock(mutex_);
    streams_.erase(process);
    events_.push_back(runner::ProcessLost{process, incarnation});
    changed_.notify_all();
    return grpc::Status::OK;
  }

  std::function<void(int64_t)> observer;
  int64_t event_count = 0;
  uint32_t generation = 0;

 private:
  void Spawn(const runner::ProcessId& process) {
    const bool swapper = process.role == runner::Role::kSwapper;
    std::vector<std::string> arguments = {
        "--socket", folder_.path() + "/socket", "--devices", job_.devices, "--log-level", "error"};
    if (!swapper) {
      arguments.insert(arguments.end(), {"--device", process.role == runner::Role::kHostWorker
                                                         ? "host"
                                                         : std::to_string(process.device)});
    }
    std::vector<std::pair<int, int>> fds;
    for (size_t i = 0; i < device_fds_.size(); ++i) {
      fds.emplace_back(static_cast<int>(i), device_fds_[i].get());
    }
    programs_[process] = std::make_unique<SpawnedProgram>(
        swapper ? "harmony-swapper" : "harmony-worker", arguments,
        std::vector<std::string>{
            absl::StrCat(ipc::kSegmentFdVariable, "=", segment_.fd()),
            absl::StrCat(ipc::kDeviceFdsVariable, "=", ipc::FormatDeviceFds(fds)),
            absl::StrCat("HARMONY_INCARNATION=", ++incarnations_[process]),
            absl::StrCat("HARMONY_PARENT_PID=", getpid()), "OMP_WAIT_POLICY=passive"});
  }

  // What died before it had a stream: nobody else notices.
  void RespawnTheUnattached() {
    for (auto& [process, program] : programs_) {
      bool attached = false;
      {
        std::lock_guard lock(mutex_);
        attached = streams_.count(process) > 0;
      }
      if (!attached && program->Ended()) Spawn(process);
    }
  }

  v1::ToProcess Welcome() const {
    v1::ToProcess message;
    message.mutable_welcome()->set_num_devices(static_cast<int>(devices_.size()));
    return message;
  }
  v1::ToProcess Setup() const {
    v1::ToProcess message;
    message.mutable_job()->set_job_id("job");
    message.mutable_job()->set_job_json(job::JobSpecToJson(job_.spec));
    message.mutable_job()->set_model_config_json(job_.config_json);
    message.mutable_job()->set_plan(rpc::SerializePlan(job_.plan));
    return message;
  }

  void Take(const runner::ProcessId& process, uint32_t incarnation,
            const v1::FromProcess& message) {
    std::lock_guard lock(mutex_);
    if (message.has_job_ready()) {
      if (message.job_ready().code() == 0) {
        events_.push_back(runner::ProcessAttached{process, incarnation});
      } else {
        status_ = absl::Status(static_cast<absl::StatusCode>(message.job_ready().code()),
                               message.job_ready().message());
        ended_ = true;
      }
    } else if (message.has_quiesced()) {
      events_.push_back(runner::Quiesced{process, incarnation, message.quiesced().generation()});
    } else if (message.has_progress()) {
      const v1::LaneProgress& progress = message.progress();
      events_.push_back(runner::LaneProgress{progress.generation(),
                                             static_cast<int>(progress.lane()), progress.value()});
    } else if (message.has_failed()) {
      const v1::CommandFailed& failed = message.failed();
      events_.push_back(runner::CommandFailed{
          failed.generation(), static_cast<int>(failed.lane()), failed.value(),
          absl::Status(static_cast<absl::StatusCode>(failed.code()), failed.message())});
    } else if (message.has_stats() && process.role == runner::Role::kSwapper) {
      moved.clear();
      for (const v1::Traffic& traffic : message.stats().traffic()) {
        moved[static_cast<command::TrafficClass>(traffic.traffic())] += traffic.bytes();
      }
    }
    changed_.notify_all();
  }

  void Carry(const runner::Action& action) {
    if (const auto* raise = std::get_if<runner::RaiseGeneration>(&action)) {
      Fail(segment_.RaiseGeneration(raise->generation));
    } else if (const auto* ask = std::get_if<runner::AskQuiesce>(&action)) {
      v1::ToProcess message;
      message.mutable_quiesce()->set_generation(ask->generation);
      SendTo(ask->process, message);
    } else if (const auto* kill = std::get_if<runner::KillProcess>(&action)) {
      Kill(kill->process);
    } else if (const auto* read = std::get_if<runner::ReadRecords>(&action)) {
      Fail(segment_.BeginGeneration(read->generation));
      const auto records = segment_.ReadRecords(table_.size());
      Fail(records.status());
      if (!records.ok()) return;
      std::lock_guard lock(mutex_);
      events_.push_back(runner::RecordsRead{read->generation, *records});
    } else if (const auto* start = std::get_if<runner::StartGeneration>(&action)) {
      v1::ToProcess message;
      message.mutable_start()->set_generation(start->generation);
      for (const auto& [process, program] : programs_) SendTo(process, message);
    } else if (const auto* send = std::get_if<harmony::runner::Send>(&action)) {
      v1::ToProcess message;
      message.mutable_commands()->set_generation(send->generation);
      for (const command::Command& command : send->commands) {
        rpc::EncodeCommand(command, message.mutable_commands()->add_commands());
      }
      SendTo(send->process, message);
    } else if (const auto* step = std::get_if<runner::StepCompleted>(&action)) {
      const auto* scalars = reinterpret_cast<const command::StepScalars*>(
          segment_.Arena(layout_.Scalars(static_cast<int>(step->step % 2))));
      losses[static_cast<size_t>(step->step)] =
          scalars->loss_sum / static_cast<double>(scalars->label_count);
    } else if (const auto* job_ended = std::get_if<runner::JobEnded>(&action)) {
      Fail(job_ended->status);
      ended_ = true;
    }
  }

  void Fail(const absl::Status& status) {
    if (status.ok()) return;
    status_.Update(status);
    ended_ = true;
  }

  void SendTo(const runner::ProcessId& process, const v1::ToProcess& message) {
    std::lock_guard lock(mutex_);
    if (const auto found = streams_.find(process); found != streams_.end()) {
      found->second->Write(message);
    }
  }

  const MiniJob job_;
  const model::ModelSpec model_;
  const std::vector<plan::DeviceSpec> devices_;
  const dispatch::AnalyticCosts costs_;
  const plan::ArenaLayout layout_;
  const command::ObjectTableLayout table_;
  TemporaryFolder folder_;
  ipc::Segment segment_;
  std::vector<ipc::UniqueFd> device_fds_;
  std::map<runner::ProcessId, std::unique_ptr<SpawnedProgram>> programs_;
  std::map<runner::ProcessId, int> incarnations_;
  absl::Status status_;
  std::atomic<bool> ended_{false};

 public:
  std::vector<double> losses;
  std::map<command::TrafficClass, int64_t> moved;  // mutex_

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<runner::Event> events_;
  std::map<runner::ProcessId, Stream*> streams_;
  std::unique_ptr<grpc::Server> server_;
};

MiniCoordinator::MiniCoordinator(MiniJob job) : impl_(std::make_unique<Impl>(std::move(job))) {}
MiniCoordinator::~MiniCoordinator() = default;
void MiniCoordinator::OnEventNumber(std::function<void(int64_t)> observer) {
  impl_->observer = std::move(observer);
}
void MiniCoordinator::Kill(const runner::ProcessId& process) { impl_->Kill(process); }
absl::Status MiniCoordinator::Run() { return impl_->Run(); }
const std::vector<double>& MiniCoordinator::losses() const { return impl_->losses; }
std::vector<float> MiniCoordinator::Weights(int block) const { return impl_->Weights(block); }
int64_t MiniCoordinator::events() const { return impl_->event_count; }
uint32_t MiniCoordinator::generation() const { return impl_->generation; }
int64_t MiniCoordinator::MovedBytes(command::TrafficClass traffic) const {
  return impl_->moved[traffic];
}

}  // namespace harmony::testing_support
