// A target for full tensors instead of a spool: memory in which each slice has a place of its own,
// as a tensor that several ranks own has when its shards come together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/bytes.h"

namespace dws {

// A plain value; its maker owns the memory. Threads: safe from any, for different bytes.
struct PlacedMemory {
  // The bytes of a slice: runs of `run_bytes` that follow each other in slice order, `stride_bytes`
  // apart; 0: it is one run. All of them are inside the memory.
  struct Place {
    uint64_t first_byte = 0;
    uint64_t run_bytes = 0;
    uint64_t stride_bytes = 0;

    friend bool operator==(const Place&, const Place&) = default;
  };

  MutableByteSpan memory;
  std::vector<Place> places;  // as FullWant::slices

  // Returns whether every slice is one run.
  bool all_whole() const {
    return std::ranges::all_of(places, [](const Place& place) { return place.stride_bytes == 0; });
  }
  // The place of `size` bytes from byte `at` of a slice on; empty: the slice is several runs.
  MutableByteSpan Whole(size_t slice, uint64_t at, uint64_t size) const {
    if (places[slice].stride_bytes != 0) return {};
    return memory.subspan(places[slice].first_byte + at, size);
  }
  // Writes bytes of a slice of several runs.
  void Scatter(size_t slice, uint64_t at, ByteSpan bytes) const {
    const Place& place = places[slice];
    while (!bytes.empty()) {
      const uint64_t in_run = at % place.run_bytes;
      const size_t size = std::min<uint64_t>(place.run_bytes - in_run, bytes.size());
      const uint64_t to = place.first_byte + at / place.run_bytes * place.stride_bytes + in_run;
      std::memcpy(memory.subspan(to, size).data(), bytes.data(), size);
      bytes = bytes.subspan(size);
      at += size;
    }
  }
};

}  // namespace dws
