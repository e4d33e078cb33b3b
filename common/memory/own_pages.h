// Memory of this process in whole pages, huge ones if the system allows: for buffers of megabytes
// that are filled once. With small pages, page faults would cost as much as the filling.
#pragma once

#include <cstddef>
#include <memory>

namespace dws {

// Sizes are rounded up to a multiple of this.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Returns the pages to the system.
struct OwnPagesRelease {
  size_t size = 0;
  void operator()(std::byte* bytes) const;
};
using OwnPages = std::unique_ptr<std::byte[], OwnPagesRelease>;

// At least `size` zero bytes, none of which takes physical memory yet. Running out is fatal, as
// with `new`.
OwnPages AllocateOwnPages(size_t size);

}  // namespace dws
