// Where slices lie in a sender's copy of its snapshot in GPU memory: one after the other, so sender
// and receiver need to agree on nothing but which slices there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/layout.h"

namespace dws {

// Each slice begins at a multiple of this, in bytes.
inline constexpr uint64_t kGpuCopyAlignment = 64;

struct GpuCopyPlaces {
  // `slices` of `layout`.
  GpuCopyPlaces(const RankLayout& layout, std::span<const RankSlice> slices) {
    for (const RankSlice slice : slices) {
      offsets.push_back(size_bytes);
      size_bytes +=
          CeilDiv(layout.slice(slice).size_bytes(), kGpuCopyAlignment) * kGpuCopyAlignment;
    }
  }

  std::vector<uint64_t> offsets;  // in bytes, as `slices`
  uint64_t size_bytes = 0;
};

}  // namespace dws
