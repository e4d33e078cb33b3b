// What a decoded block would make of a block in somebody's memory, from the changed elements alone:
// their new values and the difference of the digest. Nothing is written to that memory and nothing
// of it read but the 8-byte words that change.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/model/digest.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Elements in memory: offsets, in bytes, from `memory`.
struct ElementPlaces {
  const std::byte* memory = nullptr;
  std::span<const uint32_t> offsets;
};

// Memory that is kept from block to block.
struct PredictScratch {
  std::vector<uint16_t> numbers;
  std::vector<uint64_t> before;
  std::vector<uint64_t> after;
};

// `changes` (Kind::kSteps or kValues) has one position for each of `places`, and each word (8
// canonical bytes of the block) that holds one lies in memory in one piece; words are counted from
// `first_word`. Stores the new values packed at `new_values` and returns the digest's difference,
// after minus before. `next` are read by the call after this one: they are fetched to the cache
// meanwhile.
Digest PredictElements(DType dtype, const DecodedBlock& changes, const ElementPlaces& places,
                       uint64_t first_word, std::byte* new_values, const ElementPlaces& next,
                       PredictScratch& scratch);

}  // namespace dws
