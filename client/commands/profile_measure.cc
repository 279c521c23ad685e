#include "client/commands/profile_measure.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/commands/common.h"
#include "client/launcher/child_process.h"
#include "client/launcher/device_memory.h"
#include "client/launcher/launch.h"
#include "client/launcher/runtime_dir.h"
#include "client/launcher/services.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/io/hf_directory.h"
#include "common/io/training_data.h"
#include "common/ipc/segment.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "common/profile/profile_estimate.h"
#include "common/profile/profile_json.h"

namespace harmony::client {
namespace {

using Part = profile::ProfileRequest::Part;

constexpr int kHost = -1;
constexpr int kLogLinesShown = 10;
constexpr uint32_t kGeneration = 1;

// One process to ask.
struct Question {
  Part part = Part::kVersions;
  int device = kHost;  // of the workers
  int layer = 0;       // kTogether
  int64_t samples = 0;
  const profile::CalibrationWork* work = nullptr;  // instead of the job and its model
};

// A private directory, removed at the end with all that is in it.
class PrivateDirectory {
 public:
  static absl::StatusOr<PrivateDirectory> Make() {
    PrivateDirectory made;
    HARMONY_ASSIGN_OR_RETURN(made.dir_, MakePrivateRuntimeDir());
    RuntimePaths paths;
    paths.dir = made.dir_;
    HARMONY_ASSIGN_OR_RETURN(RuntimeLock lock, RuntimeLock::Acquire(paths));
    made.lock_.emplace(std::move(lock));
    return made;
  }
  PrivateDirectory(PrivateDirectory&& other) noexcept
      : dir_(std::exchange(other.dir_, "")), lock_(std::move(other.lock_)) {}
  PrivateDirectory& operator=(PrivateDirectory&&) = delete;
  ~PrivateDirectory() {
    lock_.reset();
    std::error_code error;
    if (!dir_.empty()) std::filesystem::remove_all(dir_, error);
  }
  const std::string& path() const { return dir_; }

 private:
  PrivateDirectory() = default;
  std::string dir_;
  std::optional<RuntimeLock> lock_;
};

// What `harmony up` would make for its processes, with a job for measuring in the segment.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Make(const MeasureOptions& options) {
    HARMONY_ASSIGN_OR_RETURN(PrivateDirectory dir, PrivateDirectory::Make());
    Bytes slices;
    for (const plan::DeviceSpec& device : options.cluster.specs) {
      slices += profile::LinkSlice(device, options.cluster.specs.size()) * 2;
    }
    const profile::HostWorkload work = profile::HostWorkloadOf(options.model, options.job);
    const plan::ArenaLayout layout(work.model, work.plan);
    ipc::SegmentJob job;
    job.id = "profile";
    job.record_count = command::ObjectTableLayout(work.model, work.plan.num_microbatches).size();
    job.cursor_count = ipc::CursorCount(work.model);
    job.extent = std::max(layout.end(), slices);
    job.persistent = layout.persistent_bytes();
    HARMONY_ASSIGN_OR_RETURN(ipc::Segment segment, ipc::Segment::Create(job.extent * 2 + MiB(256)));
    HARMONY_RETURN_IF_ERROR(segment.AllocateJob(job));
    HARMONY_RETURN_IF_ERROR(segment.RaiseGeneration(kGeneration));
    auto bench = std::unique_ptr<Bench>(new Bench(options, std::move(dir), std::move(segment)));
    HARMONY_ASSIGN_OR_RETURN(bench->devices_,
                             MakeDeviceRegions(options.bin_dir, options.cluster.specs));
    bench->signals_ = TakeOverSignals();
    return bench;
  }
  ~Bench() { KillAll(); }

  // Asks all at once; their answers in the same order. The first failure ends all.
  absl::StatusOr<std::vector<profile::Profile>> Ask(const std::vector<Question>& questions) {
    HARMONY_RETURN_IF_ERROR(segment_.BeginGeneration(kGeneration));
    running_.clear();
    for (const Question& question : questions) {
      absl::Status started = Start(question);
      if (!started.ok()) {
        KillAll();
        return started;
      }
    }
    absl::Status status = WaitForAll();
    KillAll();
    HARMONY_RETURN_IF_ERROR(status);
    std::vector<profile::Profile> answers;
    for (const Running& process : running_) {
      HARMONY_ASSIGN_OR_RETURN(answers.emplace_back(), AnswerOf(process));
    }
    return answers;
  }
  absl::StatusOr<profile::Profile> AskOne(const Question& question) {
    HARMONY_ASSIGN_OR_RETURN(std::vector<profile::Profile> answers, Ask({question}));
    return std::move(answers.front());
  }

 private:
  struct Running {
    Question question;
    std::string name, output, log;
    Child child;  // pid 0: reaped
    int wait_status = 0;
  };

  Bench(const MeasureOptions& options, PrivateDirectory dir, ipc::Segment segment)
      : options_(options), dir_(std::move(dir)), segment_(std::move(segment)) {}

  absl::Status Start(const Question& question) {
    const bool swapper = question.part == Part::kLinks;
    Running process;
    process.question = question;
    process.name = swapper                    ? "swapper"
                   : question.device == kHost ? "host worker"
                                              : absl::StrCat("worker of device ", question.device);
    const std::string stem = absl::StrCat(dir_.path(), "/", asked_++);
    process.output = stem + ".answer";
    process.log = stem + ".log";
    profile::ProfileRequest request;
    request.part = question.part;
    const profile::CalibrationWork* const work = question.work;
    request.job_json = job::JobSpecToJson(work != nullptr ? work->job : options_.job);
    request.config_json = work != nullptr ? work->config_json : options_.config_json;
    request.quick = options_.quick;
    request.layer = question.layer;
    request.samples = question.samples;
    request.output = process.output;
    HARMONY_RETURN_IF_ERROR(
        io::WriteFileAtomically(stem + ".request", profile::ProfileRequestToJson(request)));

    ChildSpec spec;
    spec.program = absl::StrCat(options_.bin_dir, swapper ? "/harmony-swapper" : "/harmony-worker");
    spec.arguments = {"--socket",  dir_.path() + "/none", "--devices", options_.cluster.devices,
                      "--profile", stem + ".request"};
    if (!swapper) {
      const std::string device = question.device == kHost ? "host" : absl::StrCat(question.device);
      spec.arguments.insert(spec.arguments.end(), {"--device", device});
    }
    spec.environment = ProcessSettings(dir_.path(), segment_.fd());
    spec.inherited_fds = {segment_.fd()};
    std::vector<std::pair<int, int>> fds;
    for (int d = 0; d < static_cast<int>(devices_.size()); ++d) {
      if (swapper || d == question.device) fds.emplace_back(d, devices_[d].get());
    }
    for (const auto& [device, fd] : fds) spec.inherited_fds.push_back(fd);
    if (!fds.empty())
      spec.environment.emplace_back(ipc::kDeviceFdsVariable, ipc::FormatDeviceFds(fds));
    spec.log_path = process.log;
    HARMONY_ASSIGN_OR_RETURN(process.child, Spawn(spec));
    running_.push_back(std::move(process));
    return absl::OkStatus();
  }

  absl::Status WaitForAll() {
    while (true) {
      std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
      bool any = false;
      for (const Running& process : running_) {
        polled.push_back({process.child.pid != 0 ? process.child.pidfd.get() : -1, POLLIN, 0});
        any |= process.child.pid != 0;
      }
      if (!any) return absl::OkStatus();
      if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
        return absl::ErrnoToStatus(errno, "waiting for measuring processes");
      }
      if (polled[0].revents != 0) return absl::CancelledError("stopped by a signal");
      for (size_t i = 0; i < running_.size(); ++i) {
        if (polled[i + 1].revents == 0) continue;
        Reap(running_[i]);
        if (running_[i].wait_status != 0) return AnswerOf(running_[i]).status();
      }
    }
  }

  static void Reap(Running& process) {
    waitpid(process.child.pid, &process.wait_status, 0);
    process.child = Child();
  }
  void KillAll() {
    for (Running& process : running_) {
      if (process.child.pid == 0) continue;
      kill(process.child.pid, SIGKILL);
      Reap(process);
    }
  }

  absl::StatusOr<profile::Profile> AnswerOf(const Running& process) const {
    const absl::StatusOr<std::string> text =
        io::ReadWholeFile(process.output, limits::kMostFileBytes);
    if (text.ok()) return profile::ParseProfilePart(process.question.part, *text, process.name);
    return absl::InternalError(absl::StrCat(
        "the ", process.name, " ended without an answer (", DescribeExit(process.wait_status),
        "); its last lines:\n", TailOfFile(process.log, kLogLinesShown)));
  }

  const MeasureOptions& options_;
  const PrivateDirectory dir_;
  ipc::Segment segment_;
  std::vector<ipc::UniqueFd> devices_;
  ipc::UniqueFd signals_;
  std::vector<Running> running_;
  int asked_ = 0;
};

// A block that all devices have measured, not larger than the quick one.
Question TogetherOf(const profile::Profile& profile, const model::ModelSpec& model,
                    const job::JobSpec& job) {
  const int typical = profile::TypicalLayer(model);
  Question question;
  question.part = Part::kTogether;
  question.samples = profile::QuickSize(job);
  for (const profile::DeviceProfile& device : profile.devices) {
    for (const profile::LayerProfile& layer : device.layers) {
      if (layer.layers.front() != typical) continue;
      question.layer = layer.layers.front();
      int64_t most = layer.sizes.front().samples;
      for (const profile::LayerSizeProfile& size : layer.sizes) {
        if (size.samples <= question.samples) most = size.samples;
      }
      question.samples = most;
      break;
    }
  }
  return question;
}

// Seconds of what the question asks for.
double TimeAlone(const profile::DeviceProfile& device, const Question& question) {
  const auto seconds = [](const profile::LayerSizeProfile& size) {
    return size.backward.median + (size.forward ? size.forward->median : 0);
  };
  const auto layer = std::find_if(
      device.layers.begin(), device.layers.end(),
      [&](const profile::LayerProfile& each) { return each.layers.front() == question.layer; });
  return profile::InterpolateSeconds(layer->sizes, question.samples, seconds);
}

absl::Status MeasureTogether(const MeasureOptions& options, Bench& bench,
                             profile::Profile& profile) {
  if (profile.devices.size() < 2) return absl::OkStatus();
  options.say("measuring all devices at once");
  std::vector<Question> questions;
  for (size_t d = 0; d < profile.devices.size(); ++d) {
    questions.push_back(TogetherOf(profile, options.model, options.job));
    questions.back().device = static_cast<int>(d);
  }
  HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Profile> answers, bench.Ask(questions));
  // Devices alike share their mean: who got more of a core in that second is chance.
  std::map<std::string, std::pair<double, int>> sums;
  for (size_t d = 0; d < profile.devices.size(); ++d) {
    auto& [sum, count] = sums[profile.devices[d].spec];
    sum += answers[d].devices[0].together / TimeAlone(profile.devices[d], questions[d]);
    ++count;
  }
  for (profile::DeviceProfile& device : profile.devices) {
    const auto& [sum, count] = sums[device.spec];
    device.together = sum / count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MeasureOptions> MeasureOptionsOf(const GlobalOptions& global, const JobOptions& job,
                                                const v1::SubmitRequest& request) {
  job::JobOverrides overrides;
  overrides.settings = job.overrides;
  overrides.folder = request.working_directory();
  MeasureOptions measure;
  HARMONY_ASSIGN_OR_RETURN(const job::JobFile file,
                           job::ReadJobFile(request.job_yaml(), request.job_path(), overrides));
  measure.job = file.job;
  HARMONY_ASSIGN_OR_RETURN(const io::ModelSource source,
                           io::OpenModelSource(measure.job.model_name_or_path));
  HARMONY_ASSIGN_OR_RETURN(
      measure.job.sequence_length,
      model::SequenceLengthFor(source.architecture, measure.job.sequence_length));
  HARMONY_ASSIGN_OR_RETURN(measure.model, job::ModelOf(source.architecture, measure.job));
  measure.config_json = source.config_json;
  measure.times_follow_flops = model::TimesFollowFlops(source.architecture);
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<io::TrainingData> data,
                           io::OpenTrainingData(measure.job, measure.model));
  HARMONY_RETURN_IF_ERROR(data->Validate(measure.job.global_batch_size));
  if (file.epochs > 0) {
    HARMONY_ASSIGN_OR_RETURN(
        measure.job.max_steps,
        job::StepsOfEpochs(file.epochs, data->sample_count(), measure.job.global_batch_size));
  }
  measure.bin_dir = BinDir(global);
  return measure;
}

absl::StatusOr<profile::ProfileVersions> AskVersions(const MeasureOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(options));
  HARMONY_ASSIGN_OR_RETURN(const profile::Profile answer, bench->AskOne({Part::kVersions}));
  return answer.versions;
}

absl::StatusOr<profile::Profile> MeasureProfile(const MeasureOptions& options,
                                                const profile::ProfileVersions& versions) {
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(options));
  profile::Profile profile = profile::BlankProfile(options.model, options.job);
  profile.quick = options.quick;
  profile.versions = versions;
  options.say("measuring the links");
  HARMONY_ASSIGN_OR_RETURN(profile::Profile links, bench->AskOne({Part::kLinks}));
  options.say("measuring the host");
  HARMONY_ASSIGN_OR_RETURN(const profile::Profile host, bench->AskOne({Part::kHost}));
  profile.host = host.host;
  std::map<std::string, std::vector<profile::LayerProfile>>
      measured;  // by the device's specification
  for (size_t d = 0; d < options.cluster.specs.size(); ++d) {
    const plan::DeviceSpec& spec = options.cluster.specs[d];
    profile::DeviceProfile& device = profile.devices.emplace_back(std::move(links.devices[d]));
    device.spec = ToString(spec);
    device.memory = spec.memory;
    if (!measured.contains(device.spec)) {
      options.say(absl::StrCat("measuring the layers on device ", d, ", ", device.spec));
      HARMONY_ASSIGN_OR_RETURN(profile::Profile layers,
                               bench->AskOne({Part::kLayers, static_cast<int>(d)}));
      measured[device.spec] = std::move(layers.devices[0].layers);
    }
    device.layers = measured[device.spec];
  }
  HARMONY_RETURN_IF_ERROR(MeasureTogether(options, *bench, profile));
  return profile;
}

absl::StatusOr<profile::Profile> MeasureSpeeds(const MeasureOptions& options,
                                               const profile::ProfileVersions& versions,
                                               const profile::CalibrationWork& work) {
  HARMONY_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(options));
  profile::Profile speeds = profile::BlankProfile(work.model, work.job);
  speeds.model = "a layer, to calibrate by";
  speeds.quick = true;
  speeds.versions = versions;
  HARMONY_ASSIGN_OR_RETURN(profile::Profile links, bench->AskOne({Part::kLinks}));
  HARMONY_ASSIGN_OR_RETURN(const profile::Profile host, bench->AskOne({Part::kHost}));
  speeds.host = host.host;
  std::vector<Question> questions;
  for (const plan::DeviceSpec& device : work.devices) {
    questions.push_back(
        {Part::kTogether, device.ordinal, work.layer, work.job.global_batch_size, &work});
  }
  HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Profile> answers, bench->Ask(questions));
  // Of a forward and a backward, divided as their FLOPs are. The devices are alike: who got more of
  // a core in that moment is chance.
  std::vector<double> backwards;
  for (const profile::Profile& answer : answers) {
    backwards.push_back(answer.devices[0].together * profile::kBackwardForwards /
                        (profile::kBackwardForwards + 1));
  }
  profile::Measured backward = profile::MeasuredOf(backwards);
  backward.median = absl::c_accumulate(backwards, 0.0) / static_cast<double>(backwards.size());
  for (size_t d = 0; d < work.devices.size(); ++d) {
    profile::DeviceProfile& device = speeds.devices.emplace_back(std::move(links.devices[d]));
    device.spec = ToString(work.devices[d]);
    device.memory = work.devices[d].memory;
    profile::LayerSizeProfile size;
    size.samples = work.job.global_batch_size;
    size.backward = backward;
    profile::LayerProfile& layer = device.layers.emplace_back();
    layer.kind = work.model.cost_of(work.layer).name;
    layer.layers = {work.layer};
    layer.input_bytes = model::LayerInputBytes(work.model, work.layer, 1);
    layer.sizes.push_back(size);
  }
  return speeds;
}

}  // namespace harmony::client
