#pragma once

namespace harmony {

// The version and a digest of the sources that a program was built from: "0.1.0+3f2a90c41b7e".
// Processes of one run must have the same: they share memory whose layout a change of any source
// may move.
const char* BuildIdentity();

}  // namespace harmony
