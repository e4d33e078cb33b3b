// Whole objects: a delta brings a receiver from its base to exactly the new state; every truncation
// and every flipped byte is an error; a manifest that does not fit its layout is refused, and the
// message names the part that does not fit.
#include "common/delta/objects/object.h"

#include <catch2/catch.hpp>

#include "common/delta/blocks/diff.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "common/model/limits.h"
#include "tests/common/delta/objects.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;
using samples::State;

RankLayout MixedLayout() {
  TensorSpec columns;
  columns.name = "columns";
  columns.shape = {64, 90};
  columns.cuts = {{1, {33}}};
  TensorSpec masters;
  masters.name = "masters";
  masters.dtype = DType::kF32;
  masters.shape = {200'000};
  const Result<RankLayout> layout =
      RankLayout::Create({{.tensor = columns, .cells = {{0, 2}}}, {.tensor = masters}});
  REQUIRE(layout.ok());
  return *layout;
}

RankLayout SmallLayout() {
  TensorSpec spec;
  spec.name = "w";
  spec.shape = {500};
  const Result<RankLayout> layout = RankLayout::Create({{.tensor = spec}});
  REQUIRE(layout.ok());
  return *layout;
}

State NudgeAll(Random& random, const RankLayout& layout, const State& before, double density) {
  State after;
  for (size_t s = 0; s < before.size(); ++s) {
    after.push_back(samples::Nudge(random, layout.slices()[s].dtype, before[s], density, 4));
  }
  return after;
}

void RequireApplies(const Bytes& object, const RankLayout& layout, const State& before,
                    const State& after, bool compare_base) {
  State state = before;
  const Status status = samples::ApplyObject(object, layout, compare_base, state);
  INFO(ToString(status));
  REQUIRE(status.ok());
  REQUIRE(state == after);
}

}  // namespace

TEST_CASE("a manifest of more slices or frames than a layout has is refused before it is parsed",
          "[delta]") {
  const Bytes slices = [] {
    Bytes bytes;
    for (int i = 0; i < 500'000; ++i) {  // empty SliceDeltas
      bytes.push_back(std::byte{0x32});
      bytes.push_back(std::byte{0});
    }
    return bytes;
  }();
  const Result<DeltaManifest> many_slices = DeserializeManifest(slices);
  REQUIRE(many_slices.status().code() == absl::StatusCode::kDataLoss);
  REQUIRE(Message(many_slices.status()).find("slices") != std::string_view::npos);
  Bytes frames = {std::byte{0x32}, std::byte{100}};  // a SliceDelta of 50 empty frames
  for (int i = 0; i < 50; ++i) {
    frames.push_back(std::byte{0x2A});
    frames.push_back(std::byte{0});
  }
  const Result<DeltaManifest> many_frames = DeserializeManifest(frames);
  REQUIRE(many_frames.status().code() == absl::StatusCode::kDataLoss);
  REQUIRE(Message(many_frames.status()).find("frames") != std::string_view::npos);
}

TEST_CASE("a manifest with unknown fields is refused before it is parsed", "[delta]") {
  // The parser would keep each of them; a group would take fifty times its bytes.
  const auto in = [](std::vector<uint8_t> outer, std::vector<uint8_t> unknown, size_t times) {
    Bytes inner;
    for (size_t i = 0; i < times; ++i) {
      for (const uint8_t byte : unknown) inner.push_back(static_cast<std::byte>(byte));
    }
    for (auto tag = outer.rbegin(); tag != outer.rend(); ++tag) {
      REQUIRE(inner.size() < 128);
      inner.insert(inner.begin(), {std::byte{*tag}, static_cast<std::byte>(inner.size())});
    }
    return DeserializeManifest(inner).status();
  };
  constexpr uint8_t kStream = 0x0A, kSlice = 0x32, kBefore = 0x1A, kFrame = 0x2A;
  const std::vector<std::vector<uint8_t>> outers = {
      {}, {kStream}, {kSlice}, {kSlice, kBefore}, {kSlice, kFrame}};
  const std::vector<std::vector<uint8_t>> unknowns = {
      {0x78, 1},           // 15 as a varint
      {0x7B, 0x7C},        // 15 as a group
      {0x7A, 1, 0xFF},     // 15 as bytes
      {0x0D, 1, 2, 3, 4},  // 1 as four bytes: nowhere is it that
  };
  for (const auto& outer : outers) {
    for (const auto& unknown : unknowns) {
      for (const size_t times : {1, 20}) {
        const Status status = in(outer, unknown, times);
        INFO(ToString(status));
        REQUIRE(absl::IsDataLoss(status));
        REQUIRE(Message(status).find("not a DeltaManifest") ==
                std::string_view::npos);  // not parsed
      }
    }
  }
  const Status cut_off = in({}, {kStream, 9, 0x11}, 1);
  REQUIRE(absl::IsDataLoss(cut_off));
  REQUIRE(Message(cut_off).find("is cut off") != std::string_view::npos);
}

TEST_CASE("an object brings every slice from its base to the new version", "[delta]") {
  const uint64_t seed = samples::TestSeed();
  Random random(seed);
  const RankLayout layout = MixedLayout();
  const State before = samples::RandomState(layout, seed);
  for (const double density : {0.0, 0.0001, 0.01, 0.3, 1.0}) {
    const State after = NudgeAll(random, layout, before, density);
    const samples::Encoding delta = samples::EncodeState(layout, before, after, {});
    const Bytes object = samples::SealObject(layout, delta, 4);
    REQUIRE(object == samples::SealObject(layout, delta, 4));
    RequireApplies(object, layout, before, after, true);
    const samples::Encoding full = samples::EncodeState(
        layout, before, after, {.relative = false, .absolute = true, .zstd = true});
    const State zeros = {Bytes(before[0].size()), Bytes(before[1].size()), Bytes(before[2].size())};
    RequireApplies(samples::SealObject(layout, full, 4), layout, zeros, after, false);
  }
}

TEST_CASE("a manifest is read as it was written and leaves out unchanged slices", "[delta]") {
  const RankLayout layout = MixedLayout();
  const State before = samples::RandomState(layout, 1);
  State after = before;
  after[1][0] ^= std::byte{1};
  const samples::Encoding encoding = samples::EncodeState(layout, before, after, {});
  const Bytes object = samples::SealObject(layout, encoding, 8);
  const Result<DeltaManifest> manifest = ParseObjectManifest(object, layout);
  REQUIRE(manifest.ok());
  REQUIRE(manifest->slices.size() == 1);
  REQUIRE(manifest->slices[0].slice == RankSlice(1));
  REQUIRE(manifest->slices[0].nnz == 1);
  REQUIRE(manifest->slices[0].after == encoding.after[1]);
  REQUIRE(manifest->version == WeightVersion(9));
  REQUIRE(manifest->base_version == WeightVersion(8));
  REQUIRE(manifest->state_token == StateToken(encoding.after));
  const Result<DeltaManifest> again = DeserializeManifest(SerializeManifest(*manifest));
  REQUIRE(again.ok());
  REQUIRE(*again == *manifest);
}

TEST_CASE("header and manifest can be read before the frames have arrived", "[delta]") {
  const RankLayout layout = SmallLayout();
  Random random(samples::TestSeed());
  const State before = samples::RandomState(layout, 1);
  const samples::Encoding encoding =
      samples::EncodeState(layout, before, NudgeAll(random, layout, before, 0.1), {});
  const Bytes object = samples::SealObject(layout, encoding, 1);
  const Result<ObjectHeader> header = ParseObjectHeader(ByteSpan(object).first(kObjectHeaderBytes));
  REQUIRE(header.ok());
  REQUIRE(header->total_bytes() == object.size());
  const size_t head_bytes = kObjectHeaderBytes + header->manifest_bytes;
  const Result<DeltaManifest> manifest =
      ParseObjectManifest(ByteSpan(object).first(head_bytes), layout);
  REQUIRE(manifest.ok());
  const FrameEntry& entry = manifest->slices[0].frames[0];
  for (size_t size = 0; size < object.size(); ++size) {
    const ByteSpan frame = FrameBytes(ByteSpan(object).first(size), *header, entry);
    REQUIRE_FALSE(ParseFrame(frame, entry).ok());
  }
  REQUIRE(ParseFrame(FrameBytes(object, *header, entry), entry).ok());
}

TEST_CASE("every truncation and every flipped byte of an object is an error", "[delta]") {
  const uint64_t seed = samples::TestSeed();
  Random random(seed);
  const RankLayout layout = SmallLayout();
  const State before = samples::RandomState(layout, seed);
  const Bytes object = samples::SealObject(
      layout, samples::EncodeState(layout, before, NudgeAll(random, layout, before, 0.1), {}), 4);
  State state = before;
  REQUIRE(samples::ApplyObject(object, layout, true, state).ok());
  for (size_t size = 0; size < object.size(); ++size) {
    state = before;
    const Status status = samples::ApplyObject(ByteSpan(object).first(size), layout, true, state);
    REQUIRE(status.code() == absl::StatusCode::kDataLoss);
  }
  for (size_t at = 0; at < object.size(); ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xFF}) {
      Bytes damaged = object;
      damaged[at] ^= std::byte{flip};
      state = before;
      const Status status = samples::ApplyObject(damaged, layout, true, state);
      INFO("byte " << at << " of " << object.size());
      REQUIRE(status.code() == absl::StatusCode::kDataLoss);
      REQUIRE(state == before);  // nothing of a damaged object was applied
    }
  }
}

TEST_CASE("sizes in a header are bounded before anything is read or allocated", "[delta]") {
  const Bytes sound = samples::Assemble({}, {}, 1);
  REQUIRE(ParseObjectHeader(sound).ok());
  const auto with = [&](size_t at, uint64_t value, uint32_t flags) {
    Bytes object = sound;
    StoreLe(object.data() + at, value);
    StoreLe(object.data() + 12, flags);
    samples::FixHeaderChecksum(object);
    return ParseObjectHeader(object).status().code();
  };
  REQUIRE(with(40, limits::kObjectBytesMax, 0) == absl::StatusCode::kOk);
  REQUIRE(with(40, limits::kObjectBytesMax + 1, 0) == absl::StatusCode::kDataLoss);
  REQUIRE(with(24, limits::kManifestBytesMax, 1) == absl::StatusCode::kOk);
  REQUIRE(with(24, limits::kManifestBytesMax + 1, 1) == absl::StatusCode::kDataLoss);
  REQUIRE(with(16, ~uint64_t{0}, 0) == absl::StatusCode::kDataLoss);
  REQUIRE(with(48, 1, 0) == absl::StatusCode::kDataLoss);
  REQUIRE(with(40, 0, 2) == absl::StatusCode::kDataLoss);
  // A small compressed manifest that claims more than its layout makes possible is not
  // decompressed.
  Bytes bomb = samples::Assemble({}, {}, 1);
  StoreLe(bomb.data() + 24, limits::kManifestBytesMax);
  StoreLe(bomb.data() + 12, uint32_t{1});
  samples::FixHeaderChecksum(bomb);
  const Status status = ParseObjectManifest(bomb, SmallLayout()).status();
  REQUIRE(status.code() == absl::StatusCode::kDataLoss);
  REQUIRE(Message(status).find("possible for this layout") != std::string_view::npos);
}

TEST_CASE("an object of another format version is refused by its number", "[delta]") {
  const Status status = ParseObjectHeader(samples::Assemble({}, {}, 2)).status();
  REQUIRE(status.code() == absl::StatusCode::kUnimplemented);
  REQUIRE(Message(status).find("format version 2") != std::string_view::npos);
}

TEST_CASE("a manifest that does not fit its layout is refused", "[delta]") {
  const RankLayout layout = MixedLayout();
  DeltaManifest sound;
  sound.version = WeightVersion(2);
  sound.base_version = WeightVersion(1);
  sound.layout_signature = layout.signature();
  sound.slices.resize(2);
  sound.slices[0].slice = RankSlice(1);
  sound.slices[0].frames = {{.first_block = 0, .block_count = 1, .offset = 0, .size_bytes = 100}};
  sound.slices[1].slice = RankSlice(2);
  sound.slices[1].frames = {{.first_block = 0, .block_count = 2, .offset = 100, .size_bytes = 100},
                            {.first_block = 3, .block_count = 1, .offset = 200, .size_bytes = 100}};
  REQUIRE(CheckManifest(sound, layout, 300).ok());
  REQUIRE(CheckManifest(sound, layout, 299).code() == absl::StatusCode::kDataLoss);
  REQUIRE(CheckManifest(sound, layout, 301).code() == absl::StatusCode::kDataLoss);

  const auto refused = [&](auto damage) {
    DeltaManifest manifest = sound;
    damage(manifest);
    return CheckManifest(manifest, layout, 300).code();
  };
  using M = DeltaManifest;
  constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;
  REQUIRE(refused([](M& m) { ++m.layout_signature.lane1; }) ==
          absl::StatusCode::kFailedPrecondition);
  REQUIRE(refused([](M& m) { m.version = WeightVersion(0); }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.base_version = WeightVersion(2); }) == kDataLoss);
  REQUIRE(refused([](M& m) { std::swap(m.slices[0].slice, m.slices[1].slice); }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].slice = RankSlice(1); }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].slice = RankSlice(3); }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[0].nnz = 64 * 57 + 1; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[0].frames.clear(); }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[0].frames[0].block_count = 0; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[0].frames[0].block_count = 2; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[0].frames[0].first_block = 0xFFFFFFFF; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].frames[1].first_block = 1; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].frames[1].block_count = 0xFFFFFFFF; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].frames[1].offset = 199; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].frames[1].size_bytes = 23; }) == kDataLoss);
  REQUIRE(refused([](M& m) { m.slices[1].frames[1].size_bytes = limits::kFrameBytesMax + 1; }) ==
          kDataLoss);
}

TEST_CASE("a manifest with a frame for every block and the widest numbers stays below its maximum",
          "[delta]") {
  const RankLayout layout = MixedLayout();
  DeltaManifest manifest;
  const uint64_t most = ~uint64_t{0};
  manifest.stream = {.incarnation = most, .id_hi = most, .id_lo = most};
  manifest.trainer_rank = TrainerRank(0xFFFFFFFF);
  manifest.version = WeightVersion(most);
  manifest.base_version = WeightVersion(most);
  manifest.layout_signature = {.lane0 = most, .lane1 = most};
  manifest.state_token = manifest.layout_signature;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    SliceDelta& slice = manifest.slices.emplace_back();
    slice.slice = RankSlice(0xFFFFFFFF);
    slice.nnz = most;
    slice.before = slice.after = manifest.layout_signature;
    const FrameEntry widest{.first_block = 0xFFFFFFFF,
                            .block_count = 0xFFFFFFFF,
                            .offset = most,
                            .size_bytes = most,
                            .checksum = most};
    slice.frames.assign(layout.slices()[s].blocks, widest);
  }
  REQUIRE(SerializeManifest(manifest).size() <= ManifestBytesMax(layout));
}

TEST_CASE("a squashed object gives the same state as its objects one after the other", "[delta]") {
  const uint64_t seed = samples::TestSeed();
  Random random(seed);
  const RankLayout layout = SmallLayout();
  const State v1 = samples::RandomState(layout, seed);
  const State v2 = NudgeAll(random, layout, v1, 0.1);
  const State v3 = NudgeAll(random, layout, v2, 0.1);
  State stepwise = v1;
  for (const auto& [from, to] : {std::pair(v1, v2), std::pair(v2, v3)}) {
    const Bytes object = samples::SealObject(layout, samples::EncodeState(layout, from, to, {}), 4);
    REQUIRE(samples::ApplyObject(object, layout, true, stepwise).ok());
  }
  BlockChanges first;
  BlockChanges second;
  const Digest change = DiffBlock(DType::kBF16, v1[0], v2[0], 0, first) +
                        DiffBlock(DType::kBF16, v2[0], v3[0], 0, second);
  samples::Encoding squashed;
  squashed.blocks = {{EncodeSteps(DType::kBF16, ComposeSteps(DType::kBF16, first, second), 500)}};
  squashed.before = {DigestBytes(v1[0], 0)};
  squashed.after = {squashed.before[0] + change};
  State at_once = v1;
  REQUIRE(
      samples::ApplyObject(samples::SealObject(layout, squashed, 4), layout, true, at_once).ok());
  REQUIRE(at_once == stepwise);
  REQUIRE(at_once == v3);
}

}  // namespace dws
