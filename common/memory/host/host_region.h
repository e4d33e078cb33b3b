// Host memory shared with a trainer or an engine: a memfd that came over the handle socket, mapped.
//
// Sealed against shrinking, or its owner could truncate it and kill us with SIGBUS; sealed against
// growing, so that its size is a fact. No names under /dev/shm: whoever holds a descriptor has the
// memory, nobody else.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

enum class Access { kReadOnly, kReadWrite };

// Owns the mapping, not the descriptor. Moved, never copied; a moved-from or default region is
// empty. Threads: what the bytes mean, and who may touch them when, is the owner's affair.
class HostRegion {
 public:
  // Maps all of `fd`, which is closed in any case. INVALID_ARGUMENT: it is no memfd, lacks a seal,
  // its size is not exactly `size_bytes` (which is in 1 ... limits::kRegionBytesMax), or it was
  // opened read-only and `access` wants to write. RESOURCE_EXHAUSTED: no memory or address space.
  // Works on read-only descriptors (reopened through /proc/self/fd/N): the kernel tells their
  // seals, too.
  static Result<HostRegion> Map(UniqueFd fd, uint64_t size_bytes, Access access);

  HostRegion() = default;
  HostRegion(HostRegion&& other) noexcept;
  HostRegion& operator=(HostRegion&& other) noexcept;
  ~HostRegion();

  uint64_t size_bytes() const { return size_bytes_; }
  Access access() const { return access_; }
  ByteSpan bytes() const { return {data_, size_bytes_}; }
  // Only of a kReadWrite region.
  MutableByteSpan mutable_bytes() const;

 private:
  HostRegion(std::byte* data, uint64_t size_bytes, Access access)
      : data_(data), size_bytes_(size_bytes), access_(access) {}

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  Access access_ = Access::kReadOnly;
};

// The other side: what a client does, here for tests and tools.
struct CreatedRegion {
  HostRegion region;  // mapped for writing
  UniqueFd fd;        // to be passed on
};

// A sealed memfd of zeros. `name` shows in /proc/PID/maps.
Result<CreatedRegion> CreateHostRegion(std::string_view name, uint64_t size_bytes);

// A descriptor of the same memory that cannot be mapped for writing.
Result<UniqueFd> ReopenReadOnly(const UniqueFd& fd);

}  // namespace dws
