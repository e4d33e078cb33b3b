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
    spare->Keep(OwnPages(bytes, OwnPagesRelease{size}));
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

OwnPages SparePages::Allocate(size_t size) {
  size = InHugePages(size);
  OwnPages pages = TakeOf(size);
  if (pages == nullptr) {
    MakeRoom(size);
    pages = AllocateOwnPages(size);
  }
  pages.get_deleter().spare = shared_from_this();
  return pages;
}

OwnPages SparePages::TakeOf(size_t size) {
  MutexLock lock(mutex_);
  const auto fits = std::ranges::find_if(
      pages_, [size](const OwnPages& pages) { return pages.get_deleter().size == size; });
  if (fits == pages_.end()) return nullptr;
  OwnPages found = std::move(*fits);
  pages_.erase(fits);
  return found;
}

void SparePages::MakeRoom(uint64_t size) {
  std::vector<OwnPages> unmapped;  // after the lock
  MutexLock lock(mutex_);
  wanted_bytes_ += size;
  while (wanted_bytes_ >= kSlackBytes && !pages_.empty()) {
    wanted_bytes_ -= std::min<uint64_t>(wanted_bytes_, pages_.back().get_deleter().size);
    unmapped.push_back(std::move(pages_.back()));
    pages_.pop_back();
  }
  if (pages_.empty()) wanted_bytes_ = 0;
}

void SparePages::Clear() {
  std::vector<OwnPages> unmapped;  // after the lock
  MutexLock lock(mutex_);
  wanted_bytes_ = 0;
  unmapped.swap(pages_);
}

uint64_t SparePages::size_bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const OwnPages& pages : pages_) bytes += pages.get_deleter().size;
  return bytes;
}

void SparePages::Keep(OwnPages pages) {
  MutexLock lock(mutex_);
  pages_.push_back(std::move(pages));
}

}  // namespace dws
