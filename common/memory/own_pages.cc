#include "common/memory/own_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace dws {
namespace {

size_t InHugePages(size_t size) { return CeilDiv(size, kHugePageBytes) * kHugePageBytes; }

}  // namespace

void OwnPagesRelease::operator()(std::byte* bytes) const {
  if (spare == nullptr) {
    ::munmap(bytes, size);
  } else {
    spare->Keep({bytes, size});
  }
}

OwnPages AllocateOwnPages(size_t size) {
  size = InHugePages(size);
  // Maps one huge page more than needed, so that it contains an aligned range; unmaps the rest.
  const size_t mapped_size = size + kHugePageBytes;
  void* const mapped =
      ::mmap(nullptr, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DWS_CHECK(mapped != MAP_FAILED);
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const size_t misaligned = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  const size_t front = misaligned == 0 ? 0 : kHugePageBytes - misaligned;
  if (front != 0) ::munmap(begin, front);
  if (front != kHugePageBytes) ::munmap(begin + front + size, kHugePageBytes - front);
  std::byte* const bytes = begin + front;
  // Only a hint: where huge pages are off, small ones are used.
  ::madvise(bytes, size, MADV_HUGEPAGE);
  return OwnPages(bytes, OwnPagesRelease{size});
}

SparePages::~SparePages() { Clear(); }

OwnPages SparePages::Allocate(size_t size) {
  size = InHugePages(size);
  std::byte* found = nullptr;
  {
    MutexLock lock(mutex_);
    const auto fits = std::find_if(ranges_.begin(), ranges_.end(),
                                   [size](const Range& range) { return range.size == size; });
    if (fits != ranges_.end()) {
      std::swap(*fits, ranges_.back());
      found = TakeLast().release();
    }
  }
  if (found == nullptr) {
    MakeRoom(size);
    found = AllocateOwnPages(size).release();
  }
  return OwnPages(found, OwnPagesRelease{size, shared_from_this()});
}

OwnPages SparePages::TakeLast() {
  const Range last = ranges_.back();
  ranges_.pop_back();
  return OwnPages(last.bytes, OwnPagesRelease{last.size});
}

void SparePages::MakeRoom(uint64_t size) {
  std::vector<OwnPages> unmapped;  // after the lock
  MutexLock lock(mutex_);
  wanted_bytes_ += size;
  while (wanted_bytes_ >= kSlackBytes && !ranges_.empty()) {
    wanted_bytes_ -= std::min<uint64_t>(wanted_bytes_, ranges_.back().size);
    unmapped.push_back(TakeLast());
  }
  if (ranges_.empty()) wanted_bytes_ = 0;
}

void SparePages::Clear() {
  std::vector<OwnPages> unmapped;  // after the lock
  MutexLock lock(mutex_);
  wanted_bytes_ = 0;
  while (!ranges_.empty()) unmapped.push_back(TakeLast());
}

uint64_t SparePages::size_bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.size;
  return bytes;
}

void SparePages::Keep(Range range) {
  MutexLock lock(mutex_);
  ranges_.push_back(range);
}

}  // namespace dws
