// Properties of class-split: every state of every float dtype decodes exactly under every table;
// damage is an error; where small weights change more often it is smaller than mode A.
#include "common/delta/blocks/class_split.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/delta/bits/ordinal.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

constexpr DType kFloats[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF16,
                             DType::kBF16,   DType::kF32,    DType::kF64};

ClassTable RandomTable(Random& random, DType dtype) {
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

EncodedBlock Split(DType dtype, const Bytes& before, const Bytes& after, const ClassTable& table,
                   BlockChanges& changes, EncodeScratch& scratch) {
  DiffBlock(dtype, before, after, 0, changes);
  PlanSplitRice(dtype, changes, scratch.split_rice);
  PlanClassSplit(dtype, changes, scratch.split_rice, before, table, scratch.class_split);
  return WriteClassSplit(changes, scratch.split_rice, scratch.class_split);
}

Status Decode(DType dtype, const Bytes& before, const EncodedBlock& block, const ClassTable& table,
              DecodedBlock& decoded) {
  return DecodeBlock(dtype, static_cast<uint32_t>(before.size() / ElementBytes(dtype)),
                     ViewOf(block), decoded, {.classes = &table, .before = before});
}

void RoundTrip(DType dtype, const Bytes& before, const Bytes& after, const ClassTable& table,
               EncodeScratch& scratch) {
  BlockChanges changes;
  if (before == after) return;
  const EncodedBlock block = Split(dtype, before, after, table, changes, scratch);
  DecodedBlock decoded;
  const Status status = Decode(dtype, before, block, table, decoded);
  INFO(ToString(status));
  REQUIRE(status.ok());
  REQUIRE(decoded.positions == changes.positions);
  REQUIRE(decoded.values == changes.steps);
}

}  // namespace

TEST_CASE("class-split: every float dtype at every density decodes exactly under any table",
          "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  for (const DType dtype : kFloats) {
    for (const uint32_t elements : {1U, 2U, 63U, 64U, 65U, 1001U, 65'535U, 65'536U}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      for (const double density : {0.0005, 0.01, 0.3, 0.9, 1.0}) {
        INFO(ToString(dtype) << " x " << elements << " at " << density);
        const Bytes after = samples::Nudge(random, dtype, before, density,
                                           1 + static_cast<uint32_t>(random.Below(12)));
        RoundTrip(dtype, before, after, RandomTable(random, dtype), scratch);
      }
    }
  }
}

TEST_CASE("class-split: hostile states decode exactly under any table", "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  for (const DType dtype : kFloats) {
    for (const uint32_t elements : {1U, 5U, 1001U, 65'536U}) {
      for (const samples::Hostile& pair : samples::HostilePairs(random, dtype, elements)) {
        INFO(ToString(dtype) << " x " << elements << ": " << pair.name);
        RoundTrip(dtype, pair.before, pair.after, RandomTable(random, dtype), scratch);
      }
    }
  }
}

TEST_CASE("class-split: the table made from statistics fits its dtype up to the last magnitude",
          "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  BlockChanges changes;
  for (const DType dtype : kFloats) {
    // Steps of every size on every magnitude: the largest of 8-bit floats once made a hot_scale of
    // 128, which no block can have.
    const Bytes before = samples::RandomBytes(random, size_t{20'000} * ElementBytes(dtype));
    for (const Bytes& after : {samples::RandomBytes(random, before.size()),
                               samples::Nudge(random, dtype, before, 0.5, 7)}) {
      DiffBlock(dtype, before, after, 0, changes);
      ClassStatistics statistics;
      statistics.Add(dtype,
                     {.kind = DecodedBlock::Kind::kSteps,
                      .positions = changes.positions,
                      .values = changes.steps},
                     after);
      const std::optional<ClassTable> table = ChooseClassTable(dtype, statistics, 1);
      INFO(ToString(dtype));
      REQUIRE(table.has_value());
      REQUIRE(TableFits(*table, dtype));
      RoundTrip(dtype, before, after, *table, scratch);
    }
  }
  CHECK_FALSE(TableFits({.hot_below = 128}, DType::kF8E4M3));
  CHECK_FALSE(TableFits({.hot_scale = 128}, DType::kF8E5M2));
  CHECK(TableFits({.hot_below = 128, .hot_scale = 255}, DType::kBF16));
}

TEST_CASE("class-split: truncated and longer payloads are errors", "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  BlockChanges changes;
  DecodedBlock decoded;
  for (const DType dtype : kFloats) {
    const Bytes before = samples::RandomBytes(random, size_t{3000} * ElementBytes(dtype));
    const Bytes after = samples::Nudge(random, dtype, before, 0.05, 6);
    const ClassTable table = RandomTable(random, dtype);
    EncodedBlock block = Split(dtype, before, after, table, changes, scratch);
    const Bytes payload = block.payload;
    for (size_t size = 0; size <= payload.size() + 1; ++size) {
      if (size == payload.size()) continue;
      block.payload = payload;
      block.payload.resize(size);
      REQUIRE(Decode(dtype, before, block, table, decoded).code() == absl::StatusCode::kDataLoss);
    }
  }
}

TEST_CASE("class-split: damage is an error or decodes inside the block and harms no later block",
          "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  BlockChanges changes;
  DecodedBlock decoded;
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const DType dtype = kFloats[random.Below(std::size(kFloats))];
    const uint32_t elements = 1 + static_cast<uint32_t>(random.Below(500));
    const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
    const Bytes after = samples::Nudge(random, dtype, before, 0.2, 5);
    if (before == after) continue;
    const ClassTable table = RandomTable(random, dtype);
    const EncodedBlock sound = Split(dtype, before, after, table, changes, scratch);
    EncodedBlock block = sound;
    for (uint64_t flips = random.Below(4); flips > 0; --flips) {
      block.payload[random.Below(block.payload.size())] ^=
          std::byte{static_cast<uint8_t>(1U << random.Below(8))};
    }
    if (random.Chance(0.3)) block.nnz = 1 + static_cast<uint32_t>(random.Below(elements));
    if (random.Chance(0.3)) block.parameters = static_cast<uint16_t>(random.Next());
    const ClassTable other = random.Chance(0.3) ? RandomTable(random, dtype) : table;
    const Status status = Decode(dtype, before, block, other, decoded);
    if (status.ok()) {
      REQUIRE(decoded.positions.size() == block.nnz);
      for (size_t i = 0; i < decoded.positions.size(); ++i) {
        REQUIRE(decoded.positions[i] < elements);
        REQUIRE(decoded.values[i] != 0);
        if (i > 0) REQUIRE(decoded.positions[i - 1] < decoded.positions[i]);
      }
    } else {
      REQUIRE(status.code() == absl::StatusCode::kDataLoss);
      ++refused;
    }
    REQUIRE(Decode(dtype, before, sound, table, decoded).ok());
    REQUIRE(decoded.positions == changes.positions);
    REQUIRE(decoded.values == changes.steps);
  }
  REQUIRE(refused > 500);
}

TEST_CASE("class-split: decoding needs a table that fits and the old block", "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  BlockChanges changes;
  DecodedBlock decoded;
  const Bytes before = samples::RandomBytes(random, 2000);
  const Bytes after = samples::Nudge(random, DType::kBF16, before, 0.05, 1);
  const ClassTable table{.thresholds = {100, 140}, .threshold_count = 2};
  const EncodedBlock block = Split(DType::kBF16, before, after, table, changes, scratch);
  const auto code = [&](DType dtype, uint32_t elements, const BlockBase& base) {
    return DecodeBlock(dtype, elements, ViewOf(block), decoded, base).code();
  };
  CHECK(code(DType::kBF16, 1000, {.classes = &table, .before = before}) == absl::StatusCode::kOk);
  CHECK(code(DType::kBF16, 1000, {.before = before}) == absl::StatusCode::kDataLoss);
  CHECK(code(DType::kBF16, 1000, {.classes = &table}) == absl::StatusCode::kFailedPrecondition);
  CHECK(code(DType::kI16, 1000, {.classes = &table, .before = before}) ==
        absl::StatusCode::kDataLoss);
  CHECK(code(DType::kF8E4M3, 2000, {.classes = &table, .before = before}) ==
        absl::StatusCode::kDataLoss);
}

TEST_CASE("class-split: where small weights change more often it is much smaller than mode A",
          "[delta]") {
  // Like an optimiser: one size of update for all weights, which rounding removes from large ones.
  Random random(samples::TestSeed());
  Bytes before(size_t{65'536} * 2);
  Bytes after = before;
  for (size_t i = 0; i < 65'536; ++i) {
    const auto bits =
        static_cast<uint16_t>((random.Next() & 0x807F) | (112 + random.Below(12)) << 7);
    StoreLe(before.data() + i * 2, bits);
    const double chance = std::min(0.9, std::exp2(112 - ((bits >> 7) & 0xFF)));
    const uint16_t step = random.Chance(0.5) ? 1 : 0xFFFF;
    const uint16_t ordinal = ToOrdinal(bits, Mapping::kFloat);
    StoreLe(after.data() + i * 2,
            random.Chance(chance)
                ? FromOrdinal(static_cast<uint16_t>(ordinal + step), Mapping::kFloat)
                : bits);
  }
  BlockChanges changes;
  DiffBlock(DType::kBF16, before, after, 0, changes);
  EncodeScratch scratch;
  const EncodedBlock relative = EncodeSteps(DType::kBF16, changes, 65'536, scratch);
  DecodedBlock steps;
  steps.positions = changes.positions;
  steps.values = changes.steps;
  ClassStatistics statistics;
  statistics.Add(DType::kBF16, steps, after);
  const std::optional<ClassTable> table = ChooseClassTable(DType::kBF16, statistics, 1);
  REQUIRE(table.has_value());
  REQUIRE(table->threshold_count >= 2);
  const auto split = EncodeClassSplit(DType::kBF16, changes, relative, before, *table, scratch);
  REQUIRE(split.has_value());
  REQUIRE(split->payload.size() * 100 < relative.payload.size() * 75);
  RoundTrip(DType::kBF16, before, after, *table, scratch);
}

TEST_CASE("class-split: the shift follows the size of a version's updates", "[delta]") {
  // Updates of one size, which are more steps the smaller a weight is, and none of most large ones.
  Random random(samples::TestSeed());
  Bytes before(size_t{65'536} * 2);
  for (size_t i = 0; i < 65'536; ++i) {
    StoreLe(before.data() + i * 2,
            static_cast<uint16_t>((random.Next() & 0x807F) | (108 + random.Below(16)) << 7));
  }
  const auto update = [&](int log2_size) {
    Bytes after = before;
    for (size_t i = 0; i < 65'536; ++i) {
      const auto bits = LoadLe<uint16_t>(before.data() + i * 2);
      const double steps = std::exp2(112 + log2_size - ((bits >> 7) & 0xFF));
      const auto whole = static_cast<uint64_t>(steps);
      const uint64_t step = whole + (random.Chance(steps - static_cast<double>(whole)) ? 1 : 0);
      StoreLe(after.data() + i * 2,
              FromOrdinal(static_cast<uint16_t>(ToOrdinal(bits, Mapping::kFloat) + step),
                          Mapping::kFloat));
    }
    return after;
  };
  const auto table_of = [&](const Bytes& after) {
    BlockChanges changes;
    DiffBlock(DType::kBF16, before, after, 0, changes);
    ClassStatistics statistics;
    statistics.Add(DType::kBF16,
                   {.kind = DecodedBlock::Kind::kSteps,
                    .positions = changes.positions,
                    .values = changes.steps},
                   after);
    const std::optional<ClassTable> table = ChooseClassTable(DType::kBF16, statistics, 1);
    REQUIRE(table.has_value());
    return *table;
  };
  const ClassTable table = table_of(update(0));
  EncodeScratch scratch;
  BlockChanges changes;
  for (int log2_size = -4; log2_size <= 6; ++log2_size) {
    const Bytes after = update(log2_size);
    const EncodedBlock block = Split(DType::kBF16, before, after, table, changes, scratch);
    const int shift = (block.parameters >> class_split::kShiftShift) - class_split::kShiftBias;
    INFO("updates times 2^" << log2_size << ": shift " << shift);
    CHECK(shift == log2_size);
    const size_t own =
        Split(DType::kBF16, before, after, table_of(after), changes, scratch).payload.size();
    CHECK(block.payload.size() <= own + own / 20);
    RoundTrip(DType::kBF16, before, after, table, scratch);
  }
}

TEST_CASE("class statistics: other dtypes than floats or no changes give no table", "[delta]") {
  CHECK_FALSE(ChooseClassTable(DType::kBF16, ClassStatistics{}, 10).has_value());
  ClassStatistics statistics;
  DecodedBlock steps;
  steps.positions = {0};
  steps.values = {1};
  statistics.Add(DType::kI16, steps, Bytes(20));
  CHECK_FALSE(ChooseClassTable(DType::kI16, statistics, 1).has_value());
}

}  // namespace dws
