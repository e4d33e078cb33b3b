// Memory of this process in whole pages, huge ones where the system allows: for buffers of
// megabytes that are filled once, where faults on small pages would cost as much as the filling.
#pragma once

#include <cstddef>
#include <memory>

namespace dws {

// What sizes are rounded up to.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Gives the pages back to the system.
struct OwnPagesRelease {
  size_t size = 0;
  void operator()(std::byte* bytes) const;
};
using OwnPages = std::unique_ptr<std::byte[], OwnPagesRelease>;

// At least `size` bytes, zero, nothing of them in memory yet. Running out is fatal, as for `new`.
OwnPages AllocateOwnPages(size_t size);

}  // namespace dws
