#pragma once

#include "common/plan/profile.h"

namespace harmony {

// Of this program, LibTorch as it was loaded, and the machine.
ProfileVersions MeasuringVersions();

}  // namespace harmony
