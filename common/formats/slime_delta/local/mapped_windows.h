// Walks through a mapped tensor in windows, and gives its pages back on the way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/windows.h"

namespace dws::slime {

// Pages are given back in pieces of this size: each piece interrupts every core that runs a thread
// of this process, and pages that are mapped together are also unmapped together.
inline constexpr uint64_t kReleaseBytes = uint64_t{8} << 20;

// Calls fn(offset, size_bytes) for each window of the tensor, in order, and released(offset,
// size_bytes) for each piece whose pages were given back. Returns fn's first error.
template <typename Fn, typename Released>
Status ForEachMappedWindow(const safetensors::Checkpoint& checkpoint,
                           const safetensors::CheckpointTensor& tensor, Fn&& fn,
                           Released&& released) {
  uint64_t kept_from = 0;
  for (uint64_t offset = 0; offset < tensor.size_bytes; offset += kWindowBytes) {
    const uint64_t size = std::min(kWindowBytes, tensor.size_bytes - offset);
    DWS_RETURN_IF_ERROR(fn(offset, size));
    const uint64_t end = offset + size;
    if (end - kept_from < kReleaseBytes && end < tensor.size_bytes) continue;
    checkpoint.Release(tensor, kept_from, end - kept_from);
    released(kept_from, end - kept_from);
    kept_from = end;
  }
  return OkStatus();
}

template <typename Fn>
Status ForEachMappedWindow(const safetensors::Checkpoint& checkpoint,
                           const safetensors::CheckpointTensor& tensor, Fn&& fn) {
  return ForEachMappedWindow(checkpoint, tensor, std::forward<Fn>(fn), [](uint64_t, uint64_t) {});
}

}  // namespace dws::slime
