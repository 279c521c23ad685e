// harmony-cuda: what has to be asked of the CUDA driver before anything runs, by a process of its
// own. Who asks need not open the driver (after which it could not fork), and a region is made
// where no context is.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/cuda/devices.h"
#include "common/cuda/plugin_path.h"
#include "common/cuda/region.h"
#include "common/document/status_line.h"
#include "common/ipc/fd_passing.h"

namespace harmony::cuda {
namespace {

struct Flags {
  int answer_fd = -1;
  int device = 0;
  int64_t bytes = 0;
};

absl::StatusOr<ipc::Answer> List() {
  HARMONY_ASSIGN_OR_RETURN(const Driver* driver, LoadDriver());
  HARMONY_ASSIGN_OR_RETURN(std::vector<plan::Gpu> gpus, ListGpus(*driver));
  std::error_code unseen;
  if (!std::filesystem::exists(PluginPath(), unseen)) {
    for (plan::Gpu& gpu : gpus) {
      if (!gpu.problem.empty()) continue;
      gpu.problem = absl::StrCat("this build has nothing that computes on GPUs: there is no ",
                                 PluginPath().string(), ", which is built where nvcc is");
    }
  }
  return ipc::Answer{plan::GpusToJson(gpus), {}};
}

absl::StatusOr<ipc::Answer> MakeRegion(const Flags& flags) {
  HARMONY_ASSIGN_OR_RETURN(const Driver* driver, LoadDriver());
  HARMONY_ASSIGN_OR_RETURN(ipc::UniqueFd fd,
                           CreateRegion(*driver, flags.device, Bytes(flags.bytes)));
  return ipc::Answer{"", std::move(fd)};
}

// A status line and, if that is OK, the answer.
int Give(const Flags& flags, const absl::StatusOr<ipc::Answer>& answer) {
  if (flags.answer_fd < 0) {
    if (answer.ok()) {
      std::printf("%s\n", answer->text.c_str());
    } else {
      std::fprintf(stderr, "harmony-cuda: %s\n", std::string(answer.status().message()).c_str());
    }
    return answer.ok() ? 0 : ExitCodeOf(answer.status());
  }
  const std::string line = document::EncodeStatus(answer.status());
  const absl::Status sent =
      answer.ok() ? ipc::SendAnswer(flags.answer_fd, line + answer->text, answer->fd.get())
                  : ipc::SendAnswer(flags.answer_fd, line);
  return sent.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Asks the CUDA driver; started by 'harmony'.", "harmony-cuda");
  app.set_version_flag("--version", absl::StrCat("harmony-cuda ", BuildIdentity()));
  app.require_subcommand(1);
  app.add_option("--answer-fd", flags.answer_fd, "Socket for the answer; else standard output");
  CLI::App* const list = app.add_subcommand("list", "The GPUs of this machine, as JSON");
  CLI::App* const region = app.add_subcommand("region", "Makes a region of a GPU's memory");
  region->add_option("--device", flags.device, "Number of the GPU")->required();
  region->add_option("--bytes", flags.bytes, "Size")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Give(flags, *list ? List() : MakeRegion(flags));
}

}  // namespace
}  // namespace harmony::cuda

int main(int argc, char** argv) { return harmony::cuda::Main(argc, argv); }
