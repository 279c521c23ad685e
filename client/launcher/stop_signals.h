#pragma once

#include <signal.h>

namespace harmony::client {

// The signals by which a user stops what runs. SIGHUP is one of them unless whoever started us had
// it ignored, as nohup does: then the run goes on when its terminal is closed.
sigset_t SignalsThatStop();

}  // namespace harmony::client
