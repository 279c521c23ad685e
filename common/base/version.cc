#include "common/base/version.h"

namespace harmony {

const char* Version() { return HARMONY_VERSION; }

}  // namespace harmony
