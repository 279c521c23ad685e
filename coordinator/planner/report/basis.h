#pragma once

// What a plan's times rest on where nothing was measured, in words. PURE.

#include <string>

#include "common/plan/machine.h"

namespace harmony::planner {

// "modelled: the speeds given for the devices ...", or which of them are guesses.
std::string BasisOfSpeeds(const plan::MachineSpec& machine);

}  // namespace harmony::planner
