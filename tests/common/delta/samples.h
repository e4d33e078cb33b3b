// What codec tests encode: random and hostile states of blocks of every dtype. Deterministic in the
// seed, which tests print.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/model/tensor_spec.h"

namespace dws::samples {

using Bytes = std::vector<std::byte>;

inline constexpr DType kAllDTypes[] = {DType::kBool,   DType::kU8,     DType::kI8,  DType::kF8E4M3,
                                       DType::kF8E5M2, DType::kF8E8M0, DType::kU16, DType::kI16,
                                       DType::kF16,    DType::kBF16,   DType::kU32, DType::kI32,
                                       DType::kF32,    DType::kU64,    DType::kI64, DType::kF64};

// SplitMix64. Not the standard library: its distributions differ from machine to machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  bool Chance(double probability);

 private:
  uint64_t state_;
};

// The seed of this run: DWS_TEST_SEED if set, else from the system's randomness. Prints it.
uint64_t TestSeed();

Bytes RandomBytes(Random& random, size_t size);

// `before` with each element changed with chance `density`: nine of ten by a step of +-1, the
// others by up to +-2^`step_bits`.
Bytes Nudge(Random& random, DType dtype, const Bytes& before, double density, uint32_t step_bits);

// Pairs of states that break codecs: zeros of both signs, NaN payloads, alternating signs, all
// ones, extremes, random bits.
struct Hostile {
  std::string name;
  Bytes before;
  Bytes after;
};
std::vector<Hostile> HostilePairs(Random& random, DType dtype, uint32_t element_count);

}  // namespace dws::samples
