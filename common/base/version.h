#pragma once

namespace harmony {

// Of this build, as CMakeLists.txt has it: "0.1.0".
const char* Version();

}  // namespace harmony
