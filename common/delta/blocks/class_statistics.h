// Statistics of one version, from which a sender chooses the class table of the next: how many
// elements of each magnitude there are, how many of them changed, and by how much. They come from
// samples: proportions matter, not counts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Indexed by magnitude byte. Plain counts; statistics of several blocks add up.
struct ClassStatistics {
  static constexpr size_t kBytes = 256;
  static constexpr size_t kSizes = 18;  // |step| - 1: 0, 1, 2 to 3, 4 to 7, ...; the last: all more

  std::array<uint64_t, kBytes> elements{};
  std::array<uint64_t, kBytes> changes{};
  std::array<std::array<uint32_t, kSizes>, kBytes> sizes{};  // of changes, by bit width

  // Counts one block: its state `after` and the steps that led to it. It counts only some elements
  // of a large block. Does nothing if `dtype` is not a float.
  void Add(DType dtype, const DecodedBlock& steps, ByteSpan after);
};

// The table of least expected cost. `blocks` is how many blocks the statistics stand for: each
// class has a head in each block. nullopt: no change was seen, or `dtype` is not a float.
// Logarithms may differ in their last bit between machines, and so may tables, within a bit of
// cost. That does no harm: blocks are decoded with the table in their manifest.
std::optional<ClassTable> ChooseClassTable(DType dtype, const ClassStatistics& statistics,
                                           uint64_t blocks);

}  // namespace dws
