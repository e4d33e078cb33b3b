#include "common/memory/own_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include "common/base/check.h"

namespace dws {

void OwnPagesRelease::operator()(std::byte* bytes) const { ::munmap(bytes, size); }

OwnPages AllocateOwnPages(size_t size) {
  size = (size + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
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

}  // namespace dws
