#include "tests/golden/golden_cases.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/bits/ordinal.h"
#include "tests/common/delta/encode_block.h"
#include "tests/golden/golden_parts.h"

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

// Moves an F32 element as an optimiser moves master weights: a bell curve of about 150 units width,
// with rare larger steps.
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
  columns.cuts = {{1, {16, 17, 40}}};
  TensorSpec rows = Tensor("rows", DType::kU8, {30, 11});
  rows.cuts = {{0, {10, 20}}};
  const Result<RankLayout> sliced = RankLayout::Create(
      {{.tensor = columns, .cells = {{1, 3}}}, {.tensor = rows, .cells = {{2, 1}}}});
  DWS_CHECK(sliced.ok());
  State after = NudgeAll(*sliced, samples::RandomState(*sliced, 6), 0.05, 5);
  after[1] = samples::RandomState(*sliced, 6)[1];  // an unchanged slice in the middle
  cases.push_back(Sound("column_and_row_slices", *sliced, 6, after, kRelative));

  // A box in the middle of a grid, and one of the corners of another that ends in odd words.
  TensorSpec experts = Tensor("experts", DType::kBF16, {4, 9, 14});
  experts.cuts = {{0, {1, 2}}, {2, {5, 7, 12}}};
  TensorSpec grid = Tensor("grid", DType::kU8, {11, 13});
  grid.cuts = {{0, {3, 4}}, {1, {6}}};
  const Result<RankLayout> boxes =
      RankLayout::Create({{.tensor = experts, .cells = {{1, 2}, {1, 2}}},
                          {.tensor = grid, .cells = {{2, 1}, {0, 1}}}});
  DWS_CHECK(boxes.ok());
  cases.push_back(SoundNudged("slices_of_grids", *boxes, 8, 0.1, 5, kRelative));

  const RankLayout large = LayoutOf({Tensor("large", DType::kU8, {36 * 65'536 + 5})});
  after = samples::RandomState(large, 7);
  after[0][1] ^= std::byte{1};
  after[0][140'000] ^= std::byte{0x80};
  after[0].back() ^= std::byte{0xFF};
  cases.push_back(Sound("two_frames_around_unchanged_blocks", large, 7, after, kRelative));
}

// The smaller an element, the more often it changes, and by more.
State NudgeByMagnitude(const RankLayout& layout, const State& before) {
  Random random(43);
  State after = before;
  for (size_t s = 0; s < before.size(); ++s) {
    const DType dtype = layout.slices()[s].dtype;
    const Bytes few = samples::Nudge(random, dtype, before[s], 0.01, 1);
    const Bytes many = samples::Nudge(random, dtype, before[s], 0.7, 3);
    const size_t width = ElementBytes(dtype);
    for (size_t at = 0; at < before[s].size(); at += width) {
      const auto top = static_cast<uint8_t>(before[s][at + width - 1]) & 0x7F;
      const Bytes& from = top < 0x28 ? many : few;
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(at), width,
                  after[s].begin() + static_cast<ptrdiff_t>(at));
    }
  }
  return after;
}

GoldenCase SoundSplit(std::string name, const RankLayout& layout, uint64_t seed,
                      const ClassTable& table) {
  const State before = samples::RandomState(layout, seed);
  State after = NudgeByMagnitude(layout, before);
  Encoding encoding = samples::EncodeState(layout, before, after, kRelative);
  samples::SplitEveryBlock(layout, before, after, table, encoding);
  return {.name = std::move(name),
          .layout = layout,
          .seed = seed,
          .outcome = "OK",
          .object = samples::SealObject(layout, encoding, 4),
          .after = std::move(after)};
}

void AddClassSplit(std::vector<GoldenCase>& cases) {
  const RankLayout floats =
      LayoutOf({Tensor("bf16", DType::kBF16, {70, 1000}), Tensor("f16", DType::kF16, {999}),
                Tensor("f32", DType::kF32, {1001}), Tensor("f64", DType::kF64, {63}),
                Tensor("f8_e4m3", DType::kF8E4M3, {130}), Tensor("f8_e5m2", DType::kF8E5M2, {1}),
                Tensor("i16", DType::kI16, {500})});
  cases.push_back(SoundSplit("class_split", floats, 30, kClasses));
  const RankLayout one = LayoutOf({Tensor("w", DType::kBF16, {3000})});
  cases.push_back(SoundSplit("class_split_one_class_none_hot", one, 31, ClassTable{}));
  cases.push_back(SoundSplit("class_split_eight_classes_all_hot", one, 32,
                             {.thresholds = {20, 30, 40, 50, 60, 70, 100},
                              .threshold_count = 7,
                              .hot_below = 240,
                              .hot_scale = 44}));
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

}  // namespace

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
    shards.push_back(Shard::Whole(std::move(tensor)));
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

std::vector<GoldenCase> MakeGoldenCases() {
  std::vector<GoldenCase> cases;
  AddSparse(cases);
  AddClassSplit(cases);
  AddDense(cases);
  AddDamagedCases(cases);
  AddEscapeCases(cases);
  return cases;
}

}  // namespace dws::golden
