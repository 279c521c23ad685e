#pragma once

// Tables with a row for each enumerator of an enumeration that counts from 0: the row says what the
// kind is, and its field `kind` which one. A table that lacks a kind, or has rows in another order,
// does not compile. PURE.

#include <cstddef>

namespace harmony {

// static_assert(IsTableOf<kKinds>(rows)) beside the table.
template <int kKinds, typename Row, size_t kRows>
constexpr bool IsTableOf(const Row (&rows)[kRows]) {
  bool in_order = kRows == size_t{kKinds};
  for (size_t i = 0; i < kRows; ++i) in_order = in_order && static_cast<size_t>(rows[i].kind) == i;
  return in_order;
}

}  // namespace harmony
