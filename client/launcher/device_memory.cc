#include "client/launcher/device_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/launcher/child_process.h"
#include "common/base/status.h"
#include "common/document/status_line.h"

namespace harmony::client {
namespace {

// Runs harmony-cuda with these arguments; its answer, without the status line.
absl::StatusOr<ipc::Answer> AskCuda(const std::string& bin_dir,
                                    std::vector<std::string> arguments) {
  ChildSpec spec;
  spec.program = absl::StrCat(bin_dir, "/harmony-cuda");
  if (access(spec.program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("this build is without CUDA (no program ",
                                                      spec.program, "): use sim devices"));
  }
  HARMONY_ASSIGN_OR_RETURN(ipc::AnswerSocket socket, ipc::MakeAnswerSocket());
  spec.arguments = {"--answer-fd", absl::StrCat(socket.answerer.get())};
  spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
  spec.inherited_fds = {socket.answerer.get()};
  HARMONY_ASSIGN_OR_RETURN(const Child child, Spawn(spec));
  socket.answerer.Reset();
  absl::StatusOr<ipc::Answer> answer = ipc::ReceiveAnswer(socket.asker.get());
  while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!answer.ok()) return WithContext(answer.status(), "harmony-cuda");
  const size_t end = answer->text.find('\n');
  HARMONY_RETURN_IF_ERROR(document::DecodeStatus(answer->text.substr(0, end), "harmony-cuda"));
  answer->text.erase(0, end == std::string::npos ? end : end + 1);
  return answer;
}

absl::StatusOr<ipc::UniqueFd> MakeCudaRegion(const std::string& bin_dir,
                                             const plan::DeviceSpec& device) {
  HARMONY_ASSIGN_OR_RETURN(
      ipc::Answer answer, AskCuda(bin_dir, {"region", "--device", absl::StrCat(device.cuda_ordinal),
                                            "--bytes", absl::StrCat(device.memory.count())}));
  if (answer.fd.valid()) return std::move(answer.fd);
  return absl::InternalError("harmony-cuda gave no region");
}

}  // namespace

absl::StatusOr<std::vector<plan::Gpu>> FindGpus(const std::string& bin_dir) {
  HARMONY_ASSIGN_OR_RETURN(const ipc::Answer answer, AskCuda(bin_dir, {"list"}));
  return plan::GpusFromJson(answer.text);
}

absl::StatusOr<std::vector<ipc::UniqueFd>> MakeDeviceRegions(
    const std::string& bin_dir, const std::vector<plan::DeviceSpec>& devices) {
  if (devices.front().kind == plan::DeviceKind::kCuda) {
    // Contexts and all regions together fit, or it is said before anything starts.
    HARMONY_ASSIGN_OR_RETURN(const std::vector<plan::Gpu> gpus, FindGpus(bin_dir));
    HARMONY_RETURN_IF_ERROR(plan::CheckGpus(devices, gpus));
  }
  std::vector<ipc::UniqueFd> regions;
  for (const plan::DeviceSpec& device : devices) {
    HARMONY_ASSIGN_OR_RETURN(regions.emplace_back(),
                             device.kind == plan::DeviceKind::kCuda
                                 ? MakeCudaRegion(bin_dir, device)
                                 : ipc::CreateDeviceRegion(device.ordinal, device.memory));
  }
  return regions;
}

}  // namespace harmony::client
