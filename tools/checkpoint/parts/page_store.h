// Stores bytes to the memory of a mapped file page by page, because the system writes whole pages
// to the disk. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace dws::checkpoint {

enum class StorePages : uint8_t {
  kThatDiffer,  // skip pages that already have the bytes
  // Store to pages that already have the bytes too. If the disk refused a page earlier, memory has
  // the new bytes and counts as written, but the disk has the old ones. Only a new store makes the
  // next sync write the page.
  kAll,
};

// `from` and `to` have the same size.
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
