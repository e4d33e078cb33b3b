// Stores bytes to memory that is a file, a page at a time: pages are what the disk is given. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace dws::checkpoint {

enum class StorePages : uint8_t {
  kThatDiffer,  // those that hold the bytes already are left alone
  // Also those that hold them already. A page that the disk refused earlier holds the new bytes and
  // passes for written, while the disk has the old: only a store makes the next sync write it.
  kAll,
};

// `from` and `to` are of one size.
inline void StoreBytes(ByteSpan from, MutableByteSpan to, StorePages pages) {
  constexpr size_t kPiece = 4096;
  DWS_CHECK(from.size() == to.size());
  for (size_t at = 0; at < from.size(); at += kPiece) {
    const size_t count = std::min(kPiece, from.size() - at);
    const ByteSpan piece = from.subspan(at, count);
    const MutableByteSpan place = to.subspan(at, count);
    if (pages == StorePages::kThatDiffer && std::equal(piece.begin(), piece.end(), place.begin())) {
      continue;
    }
    std::copy(piece.begin(), piece.end(), place.begin());
  }
}

}  // namespace dws::checkpoint
