// The unit of the benchmarks: one tensor in two versions, encoded. Weights of any size are
// repetitions of it. Every copy crosses PCIe and is decoded separately.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/blocks/block.h"
#include "common/memory/cuda/staging_run.h"
#include "common/model/digest/digest.h"

namespace dws::gpu_check {

enum class DeltaMode : uint8_t { kA, kB };  // split-rice; class-split
constexpr std::string_view ToString(DeltaMode mode) { return mode == DeltaMode::kA ? "A" : "B"; }

// Immutable once made.
struct EncodedUnit {
  std::vector<std::byte> before;  // BF16
  std::vector<std::byte> after;
  std::vector<EncodedBlock> blocks;
  cuda::KernelClassTable table;  // of mode B
  Digest difference;
  uint64_t changes = 0;
  uint64_t touched_sectors = 0;  // of 32 bytes
  uint64_t encoded_bytes = 0;
  uint64_t staged_bytes = 0;

  uint64_t elements() const { return before.size() / 2; }
};

// `elements` (a multiple of a block's) of about normal distribution, changed at uniform positions
// with chance `density`, by one unit in the last place.
EncodedUnit MakeUnit(uint64_t elements, double density, DeltaMode mode, ThreadPool& pool);

// The blocks of `copies` of the unit: place and result are the copy's number. The result refers to
// `unit`.
std::vector<cuda::StageItem> ItemsOf(const EncodedUnit& unit, uint32_t copies);

}  // namespace dws::gpu_check
