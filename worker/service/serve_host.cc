#include "worker/service/serve.h"

namespace harmony {

absl::Status ServeHost(ProgramContext&, TerminationSignals&) {
  return absl::UnimplementedError("the host worker is not part of this build");
}

}  // namespace harmony
