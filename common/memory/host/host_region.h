// Host memory shared with a trainer or an engine: a mapped memfd, received over the handle socket.
//
// It is sealed against shrinking: otherwise its owner could truncate it and kill us with SIGBUS. It
// is sealed against growing, so that its size is fixed. It has no name under /dev/shm: only
// processes with a descriptor can access the memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

enum class Access { kReadOnly, kReadWrite };

// Owns the mapping, not the descriptor. Moved, never copied; a moved-from or default region is
// empty. Threads: the owner decides who may access the bytes and when.
class HostRegion {
 public:
  // Maps all of `fd`, which is closed in any case. INVALID_ARGUMENT: it is not a memfd, lacks a
  // seal, its size is not exactly `size_bytes`, that is not in 1 ... limits::kRegionBytesMax, or
  // `fd` is read-only and `access` is kReadWrite. RESOURCE_EXHAUSTED: no memory or address space.
  // Works on read-only descriptors (reopened through /proc/self/fd/N): the kernel reports their
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

// The client's side, for tests and tools.
struct CreatedRegion {
  HostRegion region;  // mapped for writing
  UniqueFd fd;        // to pass to a daemon
};

// A sealed memfd of zeros. `name` appears in /proc/PID/maps.
Result<CreatedRegion> CreateHostRegion(std::string_view name, uint64_t size_bytes);

// A descriptor of the same memory that cannot be mapped for writing.
Result<UniqueFd> ReopenReadOnly(const UniqueFd& fd);

}  // namespace dws
