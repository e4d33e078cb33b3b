// Memory of this process in whole pages, huge ones if the system allows: for buffers of megabytes
// that are filled once. With small pages, page faults would cost as much as the filling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/threads/mutex.h"

namespace dws {

// Sizes are rounded up to a multiple of this.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

class SparePages;

// Returns the pages to the system, or keeps them as spare ones.
struct OwnPagesRelease {
  size_t size = 0;
  std::shared_ptr<SparePages> spare = nullptr;
  void operator()(std::byte* bytes) const;
};
using OwnPages = std::unique_ptr<std::byte[], OwnPagesRelease>;

// At least `size` zero bytes, none of which takes physical memory yet. Running out is fatal, as
// with `new`.
OwnPages AllocateOwnPages(size_t size);

// Pages that are not used at present, but will be: the system clears all that it gives, which can take
// longer than to fill them. Lifecycle: as long as anybody refers to it, its pages included. Threads:
// safe from any.
class SparePages : public std::enable_shared_from_this<SparePages> {
 public:
  SparePages() = default;
  ~SparePages();
  SparePages(const SparePages&) = delete;
  SparePages& operator=(const SparePages&) = delete;

  // As AllocateOwnPages, but with anything in them, and spare again when they are released.
  OwnPages Allocate(size_t size);
  // Returns spare ones to the system, of at least `size` if there are so many.
  void MakeRoom(uint64_t size);
  void Clear() { MakeRoom(UINT64_MAX); }
  uint64_t size_bytes() const;

 private:
  friend OwnPagesRelease;
  struct Range {
    std::byte* bytes = nullptr;
    size_t size = 0;
  };
  void Keep(Range range);

  mutable Mutex mutex_;
  std::vector<Range> ranges_ GUARDED_BY(mutex_);
};

}  // namespace dws
