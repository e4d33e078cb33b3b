// Arbitrary bytes give an error or changes inside the block; sizes are checked against the block
// before anything is allocated; unknown modes are refused by number.
#include "common/delta/decoder.h"

#include <catch2/catch.hpp>

#include "common/delta/blocks/diff.h"
#include "common/model/limits.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

constexpr EncodeOptions kBoth{.relative = true, .absolute = true, .zstd = true};

// Blocks of every mode, of 3000 elements.
struct Sample {
  DType dtype;
  EncodedBlock block;
};

std::vector<Sample> EveryMode(Random& random) {
  std::vector<Sample> sampled;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    const Bytes before = samples::RandomBytes(random, size_t{3000} * ElementBytes(dtype));
    BlockChanges changes;
    for (const double density : {0.001, 0.02, 0.3, 1.0}) {
      const Bytes after = samples::Nudge(random, dtype, before, density, 7);
      DiffBlock(dtype, before, after, 0, changes);
      if (changes.size() != 0) sampled.push_back({dtype, EncodeBlock(dtype, changes, after, {})});
    }
    DiffBlock(dtype, before, samples::RandomBytes(random, before.size()), 0, changes);
    sampled.push_back({dtype, EncodeSteps(dtype, changes, 3000)});
    Bytes few = before;
    for (size_t i = 0; i < 3 * ElementBytes(dtype); ++i) few[i] = ~few[i];
    DiffBlock(dtype, before, few, 0, changes);
    sampled.push_back({dtype, EncodeBlock(dtype, changes, few, kBoth)});
    sampled.push_back({dtype, EncodeFullBlock(dtype, before, false)});
    sampled.push_back({dtype, EncodeFullBlock(dtype, Bytes(before.size()), true)});
  }
  return sampled;
}

// What the decoder accepted can be applied: these checks and ASan fail otherwise.
void CheckApplies(DType dtype, uint32_t elements, const DecodedBlock& decoded) {
  Bytes state(size_t{elements} * ElementBytes(dtype));
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    REQUIRE(decoded.positions[i] < elements);
    if (i > 0) REQUIRE(decoded.positions[i - 1] < decoded.positions[i]);
  }
  ApplyBlock(dtype, decoded, state);
}

}  // namespace

TEST_CASE("the samples contain every mode", "[delta]") {
  Random random(samples::TestSeed());
  std::vector<int> seen(7);
  for (const Sample& sample : EveryMode(random)) ++seen[static_cast<size_t>(sample.block.mode)];
  for (const size_t mode : {1, 2, 4, 5, 6}) REQUIRE(seen[mode] > 0);
}

TEST_CASE("every truncation of every payload is an error", "[delta]") {
  Random random(samples::TestSeed());
  DecodedBlock decoded;
  for (const Sample& sample : EveryMode(random)) {
    INFO(ToString(sample.block.mode) << " of " << ToString(sample.dtype));
    EncodedBlockView view = ViewOf(sample.block);
    const size_t step = 1 + sample.block.payload.size() / 300;
    for (size_t size = 0; size < sample.block.payload.size(); size += step) {
      view.payload = ByteSpan(sample.block.payload).first(size);
      const Status status = DecodeBlock(sample.dtype, 3000, view, decoded);
      REQUIRE(status.code() == absl::StatusCode::kDataLoss);
    }
    Bytes longer = sample.block.payload;
    longer.push_back(std::byte{0});
    view.payload = longer;
    REQUIRE(DecodeBlock(sample.dtype, 3000, view, decoded).code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("damaged payloads, counts and parameters are errors or decode inside the block",
          "[delta]") {
  Random random(samples::TestSeed());
  DecodedBlock decoded;
  size_t refused = 0;
  for (const Sample& sample : EveryMode(random)) {
    for (int i = 0; i < 400; ++i) {
      EncodedBlock block = sample.block;
      for (uint64_t flips = 1 + random.Below(3); flips > 0; --flips) {
        block.payload[random.Below(block.payload.size())] ^=
            std::byte{static_cast<uint8_t>(1 << random.Below(8))};
      }
      if (random.Chance(0.3)) block.nnz = static_cast<uint32_t>(random.Below(70'000));
      if (random.Chance(0.3)) block.parameters = static_cast<uint16_t>(random.Next());
      if (random.Chance(0.3)) block.payload.resize(random.Below(block.payload.size() + 9));
      const uint32_t elements =
          random.Chance(0.3) ? 1 + static_cast<uint32_t>(random.Below(4000)) : 3000;
      const Status status = DecodeBlock(sample.dtype, elements, ViewOf(block), decoded);
      if (status.ok()) {
        CheckApplies(sample.dtype, elements, decoded);
      } else {
        REQUIRE(status.code() == absl::StatusCode::kDataLoss);
        ++refused;
      }
    }
  }
  REQUIRE(refused > 1000);
}

TEST_CASE("random bytes of every mode are errors or decode inside the block", "[delta]") {
  Random random(samples::TestSeed());
  DecodedBlock decoded;
  for (int i = 0; i < 20'000; ++i) {
    const DType dtype = samples::kAllDTypes[random.Below(std::size(samples::kAllDTypes))];
    const uint32_t elements = 1 + static_cast<uint32_t>(random.Below(200));
    const Bytes payload = samples::RandomBytes(random, random.Below(120));
    const EncodedBlockView view{
        .mode = static_cast<BlockMode>(random.Below(7)),
        .nnz = static_cast<uint32_t>(random.Below(elements + 2)),
        .parameters = static_cast<uint16_t>(random.Next() & (random.Chance(0.5) ? 0x1F : 0xFFFF)),
        .payload = payload};
    const Status status = DecodeBlock(dtype, elements, view, decoded);
    if (status.ok()) CheckApplies(dtype, elements, decoded);
  }
}

TEST_CASE("unknown modes are refused by number", "[delta]") {
  const Bytes payload(8);
  DecodedBlock decoded;
  for (uint32_t mode = 0; mode < 256; ++mode) {
    if (mode <= 6) continue;
    const EncodedBlockView view{.mode = static_cast<BlockMode>(mode), .nnz = 1, .payload = payload};
    const Status status = DecodeBlock(DType::kBF16, 10, view, decoded);
    REQUIRE(status.code() == absl::StatusCode::kUnimplemented);
    REQUIRE(Message(status).find(std::to_string(mode)) != std::string_view::npos);
  }
}

TEST_CASE("a decoded block has at most the block's elements whatever the count says", "[delta]") {
  const Bytes payload(1 << 20);
  for (const BlockMode mode : {BlockMode::kRaw, BlockMode::kSplitRice, BlockMode::kDenseUlp,
                               BlockMode::kDenseRaw, BlockMode::kDenseZstd}) {
    DecodedBlock decoded;
    const EncodedBlockView view{.mode = mode, .nnz = 0xFFFFFFFF, .payload = payload};
    REQUIRE(DecodeBlock(DType::kF64, 10, view, decoded).code() == absl::StatusCode::kDataLoss);
    REQUIRE(decoded.positions.capacity() <= 10);
    REQUIRE(decoded.values.capacity() <= 10);
    REQUIRE(decoded.dense.capacity() <= 80);
  }
}

}  // namespace dws
