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

// Pages that are not used at present and may be used again by the next caller that needs exactly as
// many: the system clears every page that it gives, which can take longer than filling it. A user
// with a common cap for spare pages and other memory reports how much other memory it uses, and
// spare pages are given back to keep the cap. Lifecycle: lives as long as anybody refers to it; its
// pages refer to it. Threads: safe from any.
class SparePages : public std::enable_shared_from_this<SparePages> {
 public:
  // They give way a range at a time, once so much has been asked for.
  static constexpr uint64_t kSlackBytes = uint64_t{4} << 20;

  // Like AllocateOwnPages, but the pages have arbitrary contents, and become spare again when they
  // are released.
  OwnPages Allocate(size_t size);
  // `size` bytes of other memory are about to be allocated.
  void MakeRoom(uint64_t size);
  // Unmaps them all.
  void Clear();
  uint64_t size_bytes() const;

 private:
  friend OwnPagesRelease;
  void Keep(OwnPages pages);
  OwnPages TakeOf(size_t size);  // null: there are none

  mutable Mutex mutex_;
  std::vector<OwnPages> pages_ GUARDED_BY(mutex_);  // released to the system
  uint64_t wanted_bytes_ GUARDED_BY(mutex_) = 0;    // that none has given way to yet
};

}  // namespace dws
