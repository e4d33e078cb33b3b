// Slices, blocks and words of tensors, and which memory layouts reduce to runs of one stride.
#include "common/model/tensor_spec.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "common/base/bytes.h"
#include "common/model/limits.h"

namespace dws {
namespace {

TensorSpec Spec(std::vector<uint64_t> shape, uint32_t cut_dim = 0,
                std::vector<uint64_t> cuts = {}) {
  TensorSpec spec;
  spec.name = "w";
  spec.dtype = DType::kBF16;
  spec.shape = std::move(shape);
  if (!cuts.empty()) spec.cuts = {{.dim = cut_dim, .at = std::move(cuts)}};
  return spec;
}

absl::StatusCode Refused(const TensorSpec& spec, std::string_view word) {
  const Status status = Validate(spec);
  INFO(ToString(status));
  REQUIRE(Message(status).find(word) != std::string_view::npos);
  return status.code();
}

}  // namespace

TEST_CASE("dtype numbers and dtypes map to each other one to one", "[model]") {
  for (uint32_t number = 1; number <= 16; ++number) {
    REQUIRE(DTypeFromNumber(number).has_value());
    REQUIRE(static_cast<uint32_t>(*DTypeFromNumber(number)) == number);
    REQUIRE(ToString(*DTypeFromNumber(number)) != "unknown");
    const uint32_t bytes = ElementBytes(*DTypeFromNumber(number));
    REQUIRE((bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8));
  }
  REQUIRE_FALSE(DTypeFromNumber(0).has_value());
  REQUIRE_FALSE(DTypeFromNumber(17).has_value());
}

TEST_CASE("the slices of a tensor are disjoint and cover it", "[model]") {
  const TensorSpec spec = Spec({6, 10, 3}, 1, {4, 5, 9});
  REQUIRE(Validate(spec).ok());
  REQUIRE(spec.SliceCount() == 4);
  REQUIRE(spec.Slice(0)[1].begin == 0);
  uint64_t elements = 0;
  for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
    if (s > 0) REQUIRE(spec.Slice(s)[1].begin == spec.Slice(s - 1)[1].end);
    REQUIRE(spec.SliceElements(s) == 18 * spec.Slice(s)[1].size());
    elements += spec.SliceElements(s);
  }
  REQUIRE(spec.Slice(3)[1].end == 10);
  REQUIRE(elements == spec.ElementCount());
  REQUIRE(elements == 180);
  // 4 x 18 elements of 2 bytes are 18 words, 18 elements 4.5: 5 words.
  REQUIRE_FALSE(spec.HasWholeWords());
  REQUIRE(spec.FirstWords(std::vector<uint32_t>{0, 1, 2, 3}) ==
          std::vector<uint64_t>{0, 18, 23, 41});
  REQUIRE(spec.FirstWords(std::vector<uint32_t>{1, 3}) == std::vector<uint64_t>{18, 41});
}

TEST_CASE("the slices of a grid are its cells in row-major order, each element in one", "[model]") {
  TensorSpec spec = Spec({6, 10, 3}, 0, {1, 4});
  spec.cuts.push_back({.dim = 2, .at = {2}});
  spec.cuts.insert(spec.cuts.begin() + 1, {.dim = 1, .at = {4, 5, 9}});
  REQUIRE(Validate(spec).ok());
  REQUIRE(spec.SliceCount() == 3 * 4 * 2);
  REQUIRE(spec.Slice(1) == std::vector<DimRange>{{0, 1}, {0, 4}, {2, 3}});
  REQUIRE(spec.Slice(2) == std::vector<DimRange>{{0, 1}, {4, 5}, {0, 2}});
  REQUIRE(spec.Slice(8) == std::vector<DimRange>{{1, 4}, {0, 4}, {0, 2}});
  std::vector<int> held(spec.ElementCount());
  for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
    const std::vector<DimRange> slice = spec.Slice(s);
    uint64_t elements = 0;
    for (uint64_t i = slice[0].begin; i < slice[0].end; ++i) {
      for (uint64_t j = slice[1].begin; j < slice[1].end; ++j) {
        for (uint64_t k = slice[2].begin; k < slice[2].end; ++k, ++elements) {
          ++held[(i * 10 + j) * 3 + k];
        }
      }
    }
    REQUIRE(spec.SliceElements(s) == elements);
  }
  REQUIRE(std::all_of(held.begin(), held.end(), [](int times) { return times == 1; }));
}

TEST_CASE("words are numbered through all slices of a grid, whether they are whole or not",
          "[model]") {
  for (const uint64_t inner : {1, 2, 3, 4, 8}) {
    TensorSpec spec = Spec({6, inner, 20}, 0, {2, 4});
    spec.cuts.push_back({.dim = 2, .at = {4, 8, 12}});
    // 2 x inner x 4 elements of 2 bytes are whole words; an odd boundary leaves no other way.
    for (const uint64_t last : {16, 17}) {
      spec.cuts[1].at.push_back(last);
      REQUIRE(spec.HasWholeWords() == (last == 16 || inner % 2 == 0));
      std::vector<uint64_t> expected;
      std::vector<uint32_t> slices;
      uint64_t words = 0;
      for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
        expected.push_back(words);
        slices.push_back(s);
        words += CeilDiv(spec.SliceBytes(s), 8);
      }
      REQUIRE(spec.FirstWords(slices) == expected);
      spec.cuts[1].at.pop_back();
    }
  }
}

TEST_CASE("a scalar has one element and a tensor with an extent of 0 has no elements or blocks",
          "[model]") {
  REQUIRE(Spec({}).ElementCount() == 1);
  REQUIRE(Spec({}).SliceBlocks(0) == 1);
  REQUIRE(Spec({5, 0, 7}).ElementCount() == 0);
  REQUIRE(Spec({5, 0, 7}).SliceBlocks(0) == 0);
  REQUIRE(Validate(Spec({})).ok());
  REQUIRE(Validate(Spec({5, 0, 7})).ok());
}

TEST_CASE("blocks cover a slice and the last one has the rest", "[model]") {
  const uint64_t elements = 3 * uint64_t{limits::kBlockElements} + 7;
  REQUIRE(Spec({elements}).SliceBlocks(0) == 4);
  REQUIRE(BlockElements(elements, 0) == limits::kBlockElements);
  REQUIRE(BlockElements(elements, 2) == limits::kBlockElements);
  REQUIRE(BlockElements(elements, 3) == 7);
  REQUIRE(BlockElements(limits::kBlockElements, 0) == limits::kBlockElements);
}

TEST_CASE("impossible specs are refused and the error names the tensor", "[model]") {
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  TensorSpec nameless = Spec({1});
  nameless.name.clear();
  REQUIRE(Refused(nameless, "name") == kInvalid);
  nameless.name.assign(limits::kTensorNameBytesMax + 1, 'x');
  REQUIRE(Refused(nameless, "name") == kInvalid);
  REQUIRE(Refused(Spec(std::vector<uint64_t>(9, 1)), "'w' has 9 dimensions") == kInvalid);
  REQUIRE(Refused(Spec({uint64_t{1} << 42}), "'w' is larger") == kInvalid);
  REQUIRE(Refused(Spec({uint64_t{1} << 63, uint64_t{1} << 63}), "'w' is larger") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 2, {1}), "cut on dim 2") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {0}), "cut 0") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {4}), "cut 4") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {2, 2}), "cut 2") == kInvalid);
  REQUIRE(Refused(Spec({}, 0, {1}), "0 dimensions") == kInvalid);
  TensorSpec grid = Spec({4, 4}, 1, {2});
  grid.cuts.push_back({.dim = 1, .at = {3}});
  REQUIRE(Refused(grid, "dim 1 is cut after dim 1") == kInvalid);
  grid.cuts[0] = {.dim = 0, .at = {}};
  REQUIRE(Refused(grid, "no boundary") == kInvalid);
  std::vector<uint64_t> many(limits::kCutsMax + 1);
  std::iota(many.begin(), many.end(), 1);
  REQUIRE(Refused(Spec({10'000}, 0, many), "4096 cuts on dim 0, at most 4095") == kInvalid);
  many.resize(255);
  TensorSpec fine = Spec({256, 257}, 0, many);
  fine.cuts.push_back({.dim = 1, .at = many});
  REQUIRE(Validate(fine).ok());
  fine.cuts[1].at.push_back(256);
  REQUIRE(Refused(fine, "more than 65536 slices") == kInvalid);
}

TEST_CASE("a strided view reduces to runs if one stride is enough", "[model]") {
  const auto runs = [](std::vector<uint64_t> shape, std::vector<uint64_t> strides) {
    const Result<StridedRuns> result = CoalesceRuns(shape, strides);
    REQUIRE(result.ok());
    return std::vector<uint64_t>{result->run_elements, result->run_count, result->stride_elements};
  };
  REQUIRE(runs({4, 5, 6}, RowMajorStrides({4, 5, 6})) == std::vector<uint64_t>{120, 1, 0});
  REQUIRE(runs({4, 6}, {10, 1}) == std::vector<uint64_t>{6, 4, 10});
  REQUIRE(runs({2, 3, 6}, {30, 10, 1}) == std::vector<uint64_t>{6, 6, 10});
  REQUIRE(runs({1, 7, 1}, {99, 1, 55}) == std::vector<uint64_t>{7, 1, 0});
  REQUIRE(runs({}, {}) == std::vector<uint64_t>{1, 1, 0});
  REQUIRE(runs({5}, {3}) == std::vector<uint64_t>{1, 5, 3});
  REQUIRE_FALSE(CoalesceRuns({2, 3, 6}, {31, 10, 1}).ok());  // two levels of stride
  REQUIRE_FALSE(CoalesceRuns({6, 4}, {1, 6}).ok());          // transposed
  REQUIRE_FALSE(CoalesceRuns({4, 6}, {3, 1}).ok());          // rows overlap
  REQUIRE_FALSE(CoalesceRuns({4, 6}, {6}).ok());
}

TEST_CASE("a spec prints its name and dtype and shape and cuts", "[model]") {
  REQUIRE(ToString(Spec({4096, 512}, 0, {1024, 2048})) ==
          "BF16 [4096, 512] cut on dim 0 at {1024, 2048}");
  REQUIRE(ToString(Spec({})) == "BF16 [] uncut");
  TensorSpec grid = Spec({4, 4}, 0, {1});
  grid.cuts.push_back({.dim = 1, .at = {2, 3}});
  REQUIRE(ToString(grid) == "BF16 [4, 4] cut on dim 0 at {1}, dim 1 at {2, 3}");
}

}  // namespace dws
