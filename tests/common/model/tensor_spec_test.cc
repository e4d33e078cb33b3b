// Slices, blocks and words of tensors, and which memory layouts reduce to runs of one stride.
#include "common/model/tensor_spec.h"

#include <catch2/catch.hpp>

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
  spec.cut_dim = cut_dim;
  spec.cuts = std::move(cuts);
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
  REQUIRE(spec.Slice(0).begin == 0);
  uint64_t elements = 0;
  for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
    if (s > 0) REQUIRE(spec.Slice(s).begin == spec.Slice(s - 1).end);
    REQUIRE(spec.SliceElements(s) == 18 * (spec.Slice(s).end - spec.Slice(s).begin));
    elements += spec.SliceElements(s);
  }
  REQUIRE(spec.Slice(3).end == 10);
  REQUIRE(elements == spec.ElementCount());
  REQUIRE(elements == 180);
  // 4 x 18 elements of 2 bytes are 18 words, 18 elements 4.5: 5 words.
  REQUIRE(spec.SliceFirstWord(1) == 18);
  REQUIRE(spec.SliceFirstWord(2) == 23);
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
  REQUIRE(Refused(Spec({4, 4}, 1), "cut_dim 1") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 2, {1}), "cut on dim 2") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {0}), "cut 0") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {4}), "cut 4") == kInvalid);
  REQUIRE(Refused(Spec({4, 4}, 1, {2, 2}), "cut 2") == kInvalid);
  REQUIRE(Refused(Spec({}, 0, {1}), "0 dimensions") == kInvalid);
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
}

}  // namespace dws
