#pragma once

// Whether this is instrumented or unoptimised code, which runs some ten times slower: the longest
// tests take fewer instances then.

namespace harmony::testing_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace harmony::testing_support
