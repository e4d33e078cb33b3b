// What is said of the sums, and the order of what was added.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/common/memory/gradients/gradients.h"

namespace dws {
namespace {

using gradients::Bytes;
using gradients::BytesOf;
using gradients::Create;
using gradients::FromBf16;
using gradients::Gradient;
using gradients::PieceOf;
using gradients::Random;
using gradients::ToBf16;

// The sum of the pieces in this order.
std::vector<float> SumInOrder(Accumulators& sums, const std::vector<Bytes>& pieces, DType dtype,
                              const std::vector<size_t>& order, GradientSum& told) {
  ThreadPool pool(0);
  sums.LetGo();
  for (const size_t index : order) {
    REQUIRE(sums.Add(PieceOf(0, dtype, pieces[index]), pool).ok());
  }
  const Result<GradientSum> sealed = sums.Seal(pool);
  REQUIRE(sealed.ok());
  told = *sealed;
  return Gradient(sums, 0);
}

std::vector<size_t> Ascending(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

TEST_CASE("exact sums of BF16 gradients have the same bits in a thousand orders, and say so",
          "[accumulators]") {
  constexpr size_t kPieces = 64;
  constexpr size_t kElements = 3000;
  Random random(Catch::rngSeed());
  std::vector<std::vector<uint16_t>> values;
  std::vector<Bytes> pieces;
  for (size_t p = 0; p < kPieces; ++p) {
    values.push_back(gradients::RealisticBf16(random, kElements));
    pieces.push_back(BytesOf(values.back()));
  }
  Accumulators sums = Create({{.name = "layer", .elements = kElements}}, true);
  std::vector<size_t> order = Ascending(kPieces);
  GradientSum first_told;
  const std::vector<float> first = SumInOrder(sums, pieces, DType::kBF16, order, first_told);
  CHECK(first_told.exact);
  CHECK(first_told.finite);
  // The true sum, rounded once: 64 BF16 numbers of these sizes fit the 64 bits of a long double.
  for (size_t i = 0; i < kElements; ++i) {
    long double expected = 0;
    for (const std::vector<uint16_t>& piece : values) expected += FromBf16(piece[i]);
    REQUIRE(first[i] == static_cast<float>(expected));
  }
  for (size_t round = 0; round < 1000; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    GradientSum told;
    REQUIRE((BytesOf(SumInOrder(sums, pieces, DType::kBF16, order, told)) == BytesOf(first)));
    REQUIRE(told.exact);
    REQUIRE(told.of_squares == first_told.of_squares);
  }
}

TEST_CASE("an addition that is rounded is told, and then an order may show", "[accumulators]") {
  // 1 + 2^-60 has more than the 53 bits of an FP64 number.
  const std::vector<Bytes> pieces = {BytesOf(std::vector<float>{1}),
                                     BytesOf(std::vector<float>{0x1p-60F}),
                                     BytesOf(std::vector<float>{-1})};
  Accumulators sums = Create({{.name = "layer", .elements = 1}}, true);
  GradientSum told;
  CHECK(SumInOrder(sums, pieces, DType::kF32, {0, 1, 2}, told) == std::vector<float>{0});
  CHECK_FALSE(told.exact);
  CHECK(SumInOrder(sums, pieces, DType::kF32, {0, 2, 1}, told) == std::vector<float>{0x1p-60F});
  CHECK(told.exact);  // the flag went with the minibatch; this order is exact
}

TEST_CASE("a sum that is no FP32 number is rounded once", "[accumulators]") {
  // Rounded after each addition, 1 would stay 1.
  const std::vector<Bytes> pieces = {
      BytesOf(std::vector<float>{1, 1}), BytesOf(std::vector<float>{0x1p-24F, 2}),
      BytesOf(std::vector<float>{0x1p-24F, 3}), BytesOf(std::vector<float>{0x1p-26F, 4})};
  Accumulators sums = Create({{.name = "layer", .elements = 2}}, true);
  GradientSum told;
  CHECK(SumInOrder(sums, pieces, DType::kF32, {0, 1, 2}, told) ==
        std::vector<float>{1 + 0x1p-23F, 6});
  CHECK(SumInOrder(sums, pieces, DType::kF32, {0, 1, 2, 3}, told) ==
        std::vector<float>{1 + 0x1p-23F, 10});
  CHECK(told.exact);
}

TEST_CASE("FP32 sums are within the bound of n - 1 roundings in any order, and promise no more",
          "[accumulators]") {
  constexpr size_t kPieces = 50;
  constexpr size_t kElements = 2000;
  Random random(Catch::rngSeed());
  const bool bf16 = GENERATE(true, false);
  std::vector<std::vector<float>> values;
  std::vector<Bytes> pieces;
  for (size_t p = 0; p < kPieces; ++p) {
    if (bf16) {
      const std::vector<uint16_t> bits = gradients::RealisticBf16(random, kElements);
      pieces.push_back(BytesOf(bits));
      values.emplace_back();
      for (const uint16_t each : bits) values.back().push_back(FromBf16(each));
    } else {
      values.push_back(gradients::RealisticF32(random, kElements));
      pieces.push_back(BytesOf(values.back()));
    }
  }
  Accumulators sums = Create({{.name = "layer", .elements = kElements}}, false);
  std::vector<size_t> order = Ascending(kPieces);
  for (size_t round = 0; round < 10; ++round) {
    GradientSum told;
    const std::vector<float> found =
        SumInOrder(sums, pieces, bf16 ? DType::kBF16 : DType::kF32, order, told);
    CHECK_FALSE(told.exact);
    for (size_t i = 0; i < kElements; ++i) {
      long double sum = 0;
      long double sizes = 0;
      for (const std::vector<float>& piece : values) {
        sum += piece[i];
        sizes += std::abs(piece[i]);
      }
      // Each of the n - 1 additions has a relative error of at most u = 2^-24.
      constexpr long double kTerm = (kPieces - 1) * 0x1p-24L;
      REQUIRE(std::abs(found[i] - sum) <= kTerm / (1 - kTerm) * sizes);
    }
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST_CASE("infinities and NaNs are told in both modes, and zeros keep their sign",
          "[accumulators]") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  constexpr float kHuge = std::numeric_limits<float>::max();
  struct Row {
    std::vector<float> terms;
    float sum;
    bool finite;
  };
  const std::vector<Row> rows = {
      {{-0.0F}, -0.0F, true},
      {{-0.0F, -0.0F}, -0.0F, true},
      {{0.0F, -0.0F}, 0.0F, true},
      {{-0.0F, 0.0F}, 0.0F, true},
      {{1, -1}, 0.0F, true},
      {{kTiny}, kTiny, true},
      {{kTiny, kTiny}, 2 * kTiny, true},
      {{kTiny, -kTiny}, 0.0F, true},
      {{kInfinity}, kInfinity, false},
      {{1, -kInfinity}, -kInfinity, false},
      {{kInfinity, -kInfinity}, kNan, false},
      {{kNan, 1}, kNan, false},
      {{kHuge, kHuge}, kInfinity, false},
      {{kHuge, -kHuge, 5}, 5, true},
  };
  const bool exact = GENERATE(true, false);
  Accumulators sums = Create({{.name = "layer", .elements = 1}}, exact);
  for (const Row& row : rows) {
    std::vector<Bytes> pieces;
    for (const float term : row.terms) pieces.push_back(BytesOf(std::vector<float>{term}));
    GradientSum told;
    const float found =
        SumInOrder(sums, pieces, DType::kF32, Ascending(pieces.size()), told).front();
    CHECK(told.finite == row.finite);
    CHECK(told.exact == exact);
    if (std::isnan(row.sum)) {
      CHECK(std::isnan(found));
      CHECK(std::bit_cast<uint64_t>(told.of_squares) ==
            std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN()));
    } else {
      CHECK(std::bit_cast<uint32_t>(found) == std::bit_cast<uint32_t>(row.sum));
    }
  }
}

#if defined(__x86_64__)
TEST_CASE("a process that flushes subnormals to zero adds them all the same", "[accumulators]") {
  const uint16_t tiny = ToBf16(0x1p-133F);  // the smallest BF16 number
  const bool exact = GENERATE(true, false);
  Accumulators sums = Create({{.name = "layer", .elements = 1}}, exact);
  const std::vector<Bytes> pieces(3, BytesOf(std::vector<uint16_t>{tiny}));
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, and take subnormals for zeros
  GradientSum told;
  const std::vector<float> found = SumInOrder(sums, pieces, DType::kBF16, {0, 1, 2}, told);
  _mm_setcsr(before);
  CHECK(found == std::vector<float>{3 * 0x1p-133F});
  CHECK(told.of_squares > 0);
}
#endif

}  // namespace
}  // namespace dws
