#include "tests/golden/golden_cases.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/frame.h"
#include "common/delta/ordinal.h"

namespace dws::golden {
namespace {

using samples::Bytes;
using samples::Encoding;
using samples::Random;
using samples::State;

constexpr EncodeOptions kRelative{};
constexpr EncodeOptions kBoth{.relative = true, .absolute = true, .zstd = false};
constexpr EncodeOptions kFull{.relative = false, .absolute = true, .zstd = false};
constexpr EncodeOptions kFullZstd{.relative = false, .absolute = true, .zstd = true};

TensorSpec Tensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

RankLayout LayoutOf(std::vector<TensorSpec> tensors) {
  std::vector<Shard> shards;
  for (TensorSpec& tensor : tensors) {
    const uint32_t slice_count = tensor.SliceCount();
    shards.push_back({.tensor = std::move(tensor), .first_slice = 0, .slice_count = slice_count});
  }
  Result<RankLayout> layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

State NudgeAll(const RankLayout& layout, const State& before, double density, uint32_t step_bits) {
  Random random(42);
  State after;
  for (size_t s = 0; s < before.size(); ++s) {
    after.push_back(
        samples::Nudge(random, layout.slices()[s].dtype, before[s], density, step_bits));
  }
  return after;
}

// Moves an F32 element as an optimiser moves master weights: a bell of about 150 units, rarely much
// further.
void AddWideStep(Bytes& bytes, size_t element) {
  Random random(1000 + element);
  const uint64_t bits = random.Next();
  uint32_t step = static_cast<uint32_t>((bits & 0xFF) + (bits >> 8 & 0xFF) + (bits >> 16 & 0xFF) +
                                        (bits >> 24 & 0xFF)) -
                  510;
  if (element % 97 == 0) step = static_cast<uint32_t>(bits >> 42);
  std::byte* at = bytes.data() + element * 4;
  const uint32_t ordinal = ToOrdinal(LoadLe<uint32_t>(at), Mapping::kFloat);
  StoreLe(at, FromOrdinal(ordinal + step, Mapping::kFloat));
}

GoldenCase Sound(std::string name, const RankLayout& layout, uint64_t seed, const State& after,
                 const EncodeOptions& options) {
  const State before = samples::RandomState(layout, seed);
  return {.name = std::move(name),
          .layout = layout,
          .seed = seed,
          .compare_base = options.relative,
          .outcome = "OK",
          .object =
              samples::SealObject(layout, samples::EncodeState(layout, before, after, options), 4),
          .after = after};
}

GoldenCase SoundNudged(std::string name, const RankLayout& layout, uint64_t seed, double density,
                       uint32_t step_bits, const EncodeOptions& options) {
  const State after = NudgeAll(layout, samples::RandomState(layout, seed), density, step_bits);
  return Sound(std::move(name), layout, seed, after, options);
}

void AddSparse(std::vector<GoldenCase>& cases) {
  const RankLayout one = LayoutOf({Tensor("w", DType::kBF16, {300, 445})});
  cases.push_back(Sound("no_change", one, 1, samples::RandomState(one, 1), kRelative));
  cases.push_back(SoundNudged("bf16_sparse", one, 2, 0.008, 4, kRelative));
  cases.push_back(SoundNudged("bf16_dense", one, 3, 0.4, 2, kRelative));

  std::vector<TensorSpec> every_dtype;
  for (const DType dtype : samples::kAllDTypes) {
    every_dtype.push_back(Tensor("t_" + std::string(ToString(dtype)), dtype, {7, 71}));
  }
  std::sort(every_dtype.begin(), every_dtype.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  cases.push_back(SoundNudged("every_dtype", LayoutOf(every_dtype), 4, 0.1, 20, kRelative));

  const RankLayout tiny =
      LayoutOf({Tensor("empty", DType::kF32, {0, 3}), Tensor("one", DType::kF8E4M3, {1}),
                Tensor("scalar", DType::kF64, {}), Tensor("three", DType::kF16, {3})});
  cases.push_back(SoundNudged("tiny_tensors", tiny, 5, 1.0, 9, kRelative));

  TensorSpec columns = Tensor("columns", DType::kF32, {33, 50});
  columns.cut_dim = 1;
  columns.cuts = {16, 17, 40};
  TensorSpec rows = Tensor("rows", DType::kU8, {30, 11});
  rows.cuts = {10, 20};
  const Result<RankLayout> sliced =
      RankLayout::Create({{.tensor = columns, .first_slice = 1, .slice_count = 3},
                          {.tensor = rows, .first_slice = 2}});
  DWS_CHECK(sliced.ok());
  State after = NudgeAll(*sliced, samples::RandomState(*sliced, 6), 0.05, 5);
  after[1] = samples::RandomState(*sliced, 6)[1];  // an untouched slice in the middle
  cases.push_back(Sound("column_and_row_slices", *sliced, 6, after, kRelative));

  const RankLayout large = LayoutOf({Tensor("large", DType::kU8, {36 * 65'536 + 5})});
  after = samples::RandomState(large, 7);
  after[0][1] ^= std::byte{1};
  after[0][140'000] ^= std::byte{0x80};
  after[0].back() ^= std::byte{0xFF};
  cases.push_back(Sound("two_frames_around_unchanged_blocks", large, 7, after, kRelative));
}

void AddDense(std::vector<GoldenCase>& cases) {
  const RankLayout f32 = LayoutOf({Tensor("masters", DType::kF32, {1999})});
  State after = samples::RandomState(f32, 10);
  for (size_t i = 0; i < 1999; ++i) AddWideStep(after[0], i);
  cases.push_back(Sound("f32_nearly_everywhere", f32, 10, after, kRelative));
  cases.push_back(
      Sound("random_bits_to_random_bits", f32, 11, samples::RandomState(f32, 99), kRelative));

  const RankLayout mixed =
      LayoutOf({Tensor("a_far", DType::kF32, {2000}), Tensor("b_near", DType::kBF16, {2000})});
  after = NudgeAll(mixed, samples::RandomState(mixed, 12), 0.02, 1);
  after[0] = samples::RandomState(mixed, 12)[0];
  Random random(13);
  for (size_t i = 0; i < 2000; i += 400) {
    StoreLe(after[0].data() + i * 4, static_cast<uint32_t>(random.Next()));  // raw is smallest
  }
  cases.push_back(Sound("absolute_beside_relative", mixed, 12, after, kBoth));
  const State noise = samples::RandomState(mixed, 15);
  cases.push_back(Sound("full_tensors_raw", mixed, 14, noise, kFull));
  State compressible = noise;
  for (Bytes& bytes : compressible) std::fill(bytes.begin() + 100, bytes.end(), std::byte{0x3F});
  cases.push_back(Sound("full_tensors_zstd", mixed, 16, compressible, kFullZstd));
}

// What is damaged below: one small tensor, one frame of one block with exceptions, an uncompressed
// manifest.
struct Victim {
  RankLayout layout = LayoutOf({Tensor("w", DType::kBF16, {1000})});
  uint64_t seed = 20;
  Encoding encoding;
  DeltaManifest manifest;
  Bytes frame;

  Victim() {
    const State before = samples::RandomState(layout, seed);
    encoding = samples::EncodeState(layout, before, NudgeAll(layout, before, 0.03, 3), kRelative);
    Refresh();
  }
  EncodedBlock& block() { return encoding.blocks[0][0]; }
  // Frame and manifest of the encoding as it is now.
  void Refresh() {
    frame = BuildFrame(encoding.blocks[0]);
    manifest = samples::Identity(layout, encoding, 4);
    manifest.slices.resize(1);
    manifest.slices[0].nnz = block().nnz;
    manifest.slices[0].before = encoding.before[0];
    manifest.slices[0].after = encoding.after[0];
    manifest.slices[0].frames = {{.first_block = 0,
                                  .block_count = 1,
                                  .offset = 0,
                                  .size_bytes = frame.size(),
                                  .checksum = FrameChecksum(frame)}};
  }
  Bytes Object() const { return samples::Assemble(manifest, frame, 1); }
  GoldenCase Damaged(std::string name, std::string outcome, Bytes object) const {
    return {.name = std::move(name),
            .layout = layout,
            .seed = seed,
            .outcome = std::move(outcome),
            .object = std::move(object),
            .after = {}};
  }
};

// Damage that checksums find.
void AddDamaged(std::vector<GoldenCase>& cases) {
  const Victim victim;
  const Bytes sound = victim.Object();
  const auto cut = [&](size_t size) {
    return Bytes(sound.begin(), sound.begin() + static_cast<ptrdiff_t>(size));
  };
  const auto flip = [&](size_t at) {
    Bytes object = sound;
    object[at] ^= std::byte{0x10};
    return object;
  };
  cases.push_back(victim.Damaged("header_truncated", "DATA_LOSS", cut(63)));
  cases.push_back(victim.Damaged("manifest_truncated", "DATA_LOSS", cut(100)));
  cases.push_back(victim.Damaged("frames_truncated", "DATA_LOSS", cut(sound.size() - 1)));
  Bytes longer = sound;
  longer.push_back(std::byte{0});
  cases.push_back(victim.Damaged("byte_after_the_last_frame", "DATA_LOSS", longer));
  cases.push_back(victim.Damaged("magic_flipped", "DATA_LOSS", flip(3)));
  cases.push_back(victim.Damaged("format_version_flipped", "DATA_LOSS", flip(8)));
  cases.push_back(victim.Damaged("manifest_size_flipped", "DATA_LOSS", flip(16)));
  cases.push_back(victim.Damaged("manifest_flipped", "DATA_LOSS", flip(80)));
  cases.push_back(victim.Damaged("frame_flipped", "DATA_LOSS", flip(sound.size() - 20)));
}

// Damage under checksums that fit.
void AddMalformed(std::vector<GoldenCase>& cases) {
  const Victim sound;
  cases.push_back(sound.Damaged("format_version_2", "UNIMPLEMENTED",
                                samples::Assemble(sound.manifest, sound.frame, 2)));
  const auto add_block = [&](std::string name, std::string outcome, auto damage) {
    Victim victim;
    damage(victim.block());
    victim.Refresh();
    cases.push_back(victim.Damaged(std::move(name), std::move(outcome), victim.Object()));
  };
  add_block("mode_3_reserved", "UNIMPLEMENTED",
            [](EncodedBlock& block) { block.mode = BlockMode::kClassSplit; });
  add_block("mode_9_unknown", "UNIMPLEMENTED",
            [](EncodedBlock& block) { block.mode = static_cast<BlockMode>(9); });
  add_block("payload_padding_not_zero", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.back() |= std::byte{0x80}; });
  add_block("payload_one_byte_short", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.pop_back(); });
  add_block("payload_one_byte_long", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.push_back(std::byte{0}); });
  add_block("count_one_too_large", "DATA_LOSS", [](EncodedBlock& block) { ++block.nnz; });
  add_block("parameters_reserved_bit", "DATA_LOSS",
            [](EncodedBlock& block) { block.parameters |= 0x20; });

  const auto add_manifest = [&](std::string name, std::string outcome, auto damage) {
    Victim victim;
    damage(victim.manifest);
    cases.push_back(victim.Damaged(std::move(name), std::move(outcome), victim.Object()));
  };
  add_manifest("digest_after_of_another_state", "DATA_LOSS",
               [](DeltaManifest& manifest) { ++manifest.slices[0].after.lane1; });
  add_manifest("digest_before_of_another_base", "DATA_LOSS",
               [](DeltaManifest& manifest) { ++manifest.slices[0].before.lane0; });
  add_manifest("another_layout", "FAILED_PRECONDITION",
               [](DeltaManifest& manifest) { ++manifest.layout_signature.lane0; });
  add_manifest("slice_outside_the_layout", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.slices[0].slice = RankSlice(1); });
  add_manifest("block_outside_the_slice", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.slices[0].frames[0].first_block = 1; });
  add_manifest("frames_overlap", "DATA_LOSS", [](DeltaManifest& manifest) {
    manifest.slices[0].frames.push_back(manifest.slices[0].frames[0]);
  });
  add_manifest("version_not_above_base", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.base_version = manifest.version; });

  Victim short_tensor;  // positions of 1000 elements, read with a layout of 900
  short_tensor.layout = LayoutOf({Tensor("w", DType::kBF16, {900})});
  short_tensor.Refresh();
  cases.push_back(
      short_tensor.Damaged("position_outside_the_block", "DATA_LOSS", short_tensor.Object()));
}

}  // namespace

std::vector<GoldenCase> MakeGoldenCases() {
  std::vector<GoldenCase> cases;
  AddSparse(cases);
  AddDense(cases);
  AddDamaged(cases);
  AddMalformed(cases);
  return cases;
}

}  // namespace dws::golden
