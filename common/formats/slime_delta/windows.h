// Tensors are read and changed in windows that stay in a core's cache, so that memory does not grow
// with the tensor, and several things are done with its bytes for one trip to memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::slime {

inline constexpr uint64_t kWindowBytes = uint64_t{256} << 10;

// Calls fn(offset, buffer) for each window of `size_bytes` bytes, in order, with a buffer of the
// window's size and arbitrary content. Returns its first error.
template <typename Fn>
Status ForEachWindow(uint64_t size_bytes, Fn&& fn) {
  std::vector<std::byte> buffer(std::min(size_bytes, kWindowBytes));
  for (uint64_t offset = 0; offset < size_bytes; offset += kWindowBytes) {
    const uint64_t size = std::min(kWindowBytes, size_bytes - offset);
    DWS_RETURN_IF_ERROR(fn(offset, MutableByteSpan(buffer).first(size)));
  }
  return OkStatus();
}

}  // namespace dws::slime
