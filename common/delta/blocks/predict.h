// Computes the result of applying a decoded block to a block in memory, from the changed elements
// alone: their new values and the difference of the digest. Writes nothing to that memory and reads
// only the 8-byte words that change.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/model/digest/digest.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Elements in memory: their offsets from `memory`, in bytes.
struct ElementPlaces {
  const std::byte* memory = nullptr;
  std::span<const uint32_t> offsets;
};

// Memory that is reused from block to block.
struct PredictScratch {
  std::vector<uint16_t> numbers;
  std::vector<uint64_t> before;
  std::vector<uint64_t> after;
};

// `changes` (Kind::kSteps or kValues) has one position for each of `places`. Each word (8 canonical
// bytes of the block) with a changed element is contiguous in memory; words are counted from
// `first_word`. Stores the new values packed at `new_values` and returns the digest's difference,
// after minus before. `next` are the places that the next call reads: this call fetches them to the
// cache.
Digest PredictElements(DType dtype, const DecodedBlock& changes, const ElementPlaces& places,
                       uint64_t first_word, std::byte* new_values, const ElementPlaces& next,
                       PredictScratch& scratch);

}  // namespace dws
