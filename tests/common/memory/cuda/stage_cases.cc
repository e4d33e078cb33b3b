#include "tests/common/memory/cuda/stage_cases.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/absolute.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/dense_ulp.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/blocks/split_rice.h"

namespace dws::cuda {
namespace {

using samples::Bytes;

// An approximation of the normal distribution.
double Normal(samples::Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.Next() >> 11) * 0x1p-53;
  return sum;
}

// `value` in the highest bits of an IEEE number as wide as the dtype, rounded; 8-bit floats are
// made of their exponent and fraction bits.
uint64_t Encode(DType dtype, double value) {
  if (ElementBytes(dtype) == 8) return std::bit_cast<uint64_t>(value);
  if (ElementBytes(dtype) == 1) {
    const double magnitude = std::min(std::abs(value) * 64, 15.0);
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);
    const int code = magnitude < 0x1p-6 ? static_cast<int>(magnitude * 0x1p9)
                                        : (exponent + 6) * 8 + static_cast<int>(fraction * 16 - 8);
    return static_cast<uint64_t>(std::min(code, 0x7E)) | (value < 0 ? 0x80 : 0);
  }
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return ElementBytes(dtype) == 4 ? bits : (bits + 0x8000) >> 16;
}

}  // namespace

ClassTable RandomTable(samples::Random& random, DType dtype) {
  const uint64_t top = ElementBytes(dtype) == 1 ? 127 : 255;
  ClassTable table;
  uint64_t last = 0;
  for (uint64_t left = random.Below(kClassesMax); left > 0; --left) {
    last += 1 + random.Below(40);
    if (last > top) break;
    table.thresholds[table.threshold_count++] = static_cast<uint8_t>(last);
  }
  table.hot_below = static_cast<uint8_t>(random.Below(top + 1));
  table.hot_scale = static_cast<uint8_t>(random.Below(top + 1));
  return table;
}

void AddAllModes(samples::Random& random, const std::string& name, DType dtype, const Bytes& before,
                 const Bytes& after, const ClassTable& table, EncodeScratch& scratch,
                 std::vector<StageCase>& cases) {
  BlockChanges changes;
  dws::DiffBlock(dtype, before, after, 0, changes);
  if (changes.size() == 0) return;
  const auto element_count = static_cast<uint32_t>(before.size() / ElementBytes(dtype));
  const auto add = [&](EncodedBlock block) {
    const uint64_t in_front = random.Chance(0.5) ? 0 : random.Below(3000);
    cases.push_back({.name = name,
                     .dtype = dtype,
                     .before = before,
                     .block = std::move(block),
                     .table = table,
                     .layout = RandomLayout(random, in_front + element_count),
                     .elements_in_front = in_front,
                     .first_word = random.Below(uint64_t{1} << 40)});
  };
  add(WriteRaw(dtype, changes, after));
  PlanSplitRice(dtype, changes, scratch.split_rice);
  add(WriteSplitRice(changes, scratch.split_rice));
  if (TableFits(table, dtype)) {
    PlanClassSplit(dtype, changes, scratch.split_rice, before, table, scratch.class_split);
    add(WriteClassSplit(changes, scratch.split_rice, scratch.class_split));
  }
  PlanDenseUlp(dtype, changes, element_count, scratch.dense_ulp);
  add(WriteDenseUlp(scratch.dense_ulp, static_cast<uint32_t>(changes.size())));
  add(WriteDenseRaw(dtype, after));
}

Weights TrainedWeights(samples::Random& random, DType dtype, uint32_t element_count, double step) {
  const uint32_t element_bytes = ElementBytes(dtype);
  Weights weights{Bytes(size_t{element_count} * element_bytes),
                  Bytes(size_t{element_count} * element_bytes)};
  for (uint32_t i = 0; i < element_count; ++i) {
    const double weight = 0.02 * Normal(random);
    const uint64_t old_bits = Encode(dtype, weight);
    const uint64_t new_bits = Encode(dtype, weight + 0.02 * step * Normal(random));
    std::memcpy(weights.before.data() + size_t{i} * element_bytes, &old_bits, element_bytes);
    std::memcpy(weights.after.data() + size_t{i} * element_bytes, &new_bits, element_bytes);
  }
  return weights;
}

ClassTable ChosenTable(DType dtype, const Weights& weights) {
  BlockChanges changes;
  dws::DiffBlock(dtype, weights.before, weights.after, 0, changes);
  ClassStatistics statistics;
  statistics.Add(
      dtype,
      {.kind = DecodedBlock::Kind::kSteps, .positions = changes.positions, .values = changes.steps},
      weights.after);
  return ChooseClassTable(dtype, statistics, 1).value_or(ClassTable{});
}

}  // namespace dws::cuda
