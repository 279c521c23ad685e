#pragma once

// Whether this is instrumented code, which runs some ten times slower: the longest tests take fewer
// instances then.

namespace harmony {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace harmony
