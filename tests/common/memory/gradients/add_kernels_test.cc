#include "common/memory/gradients/add_kernels.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/common/memory/gradients/gradients.h"

namespace dws {
namespace {

using gradients::Bytes;
using gradients::BytesOf;
using gradients::Random;
using gradients::ValuesOf;

std::vector<InstructionSet> Sets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set :
       {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set <= MachineInstructionSet()) sets.push_back(set);
  }
  return sets;
}

// Memory whose first byte is at a multiple of 64, with a guard behind it.
class Aligned {
 public:
  explicit Aligned(const Bytes& bytes) : size_(bytes.size()), bytes_(bytes.size() + 128, kGuard) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  std::byte* data() {
    return bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
  }
  Bytes contents() { return {data(), data() + size_}; }
  bool guarded() { return data()[size_] == kGuard && data()[size_ + 1] == kGuard; }

 private:
  static constexpr std::byte kGuard{0xEE};
  size_t size_;
  Bytes bytes_;
};

// Any bits: subnormals, infinities and NaNs among them; some equal in size, so that sums cancel.
template <typename T>
std::vector<T> AnyBits(Random& random, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(random());
    if (i > 0 && random() % 8 == 0) values[i] = values[i - 1] ^ T(T{1} << (sizeof(T) * 8 - 1));
  }
  return values;
}

// FP64 sums as they come about: sums of FP32 numbers.
std::vector<double> AnySums(Random& random, size_t count) {
  const std::vector<uint32_t> bits = AnyBits<uint32_t>(random, 2 * count);
  std::vector<double> sums(count);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = double{std::bit_cast<float>(bits[2 * i])} + std::bit_cast<float>(bits[2 * i + 1]);
  }
  return sums;
}

// One bit pattern for all NaNs.
template <typename Float>
std::vector<Float> OneNan(const Bytes& bytes) {
  std::vector<Float> values = ValuesOf<Float>(bytes);
  for (Float& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<Float>::quiet_NaN();
  }
  return values;
}
template <typename Float>
Bytes Comparable(const Bytes& bytes) {
  return BytesOf(OneNan<Float>(bytes));
}

// What each kernel makes of the same memory, and what it returns.
struct Outcome {
  Bytes stored, added, stored_exact, added_exact, rounded, rounded_in_place;
  bool inexact = false;
  uint64_t squares = 0;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

struct Case {
  size_t count;
  Bytes sums, exact_sums, piece;
  size_t shift;  // of the piece, in bytes
};

Outcome Run(InstructionSet set, bool bf16, const Case& with) {
  const AddKernels& kernels = AddKernelsFor(set);
  const AddLoops& loops = bf16 ? kernels.bf16 : kernels.fp32;
  Bytes shifted(with.shift);
  shifted.insert(shifted.end(), with.piece.begin(), with.piece.end());
  const std::byte* const piece = shifted.data() + with.shift;
  Outcome outcome;
  Aligned sum(with.sums);
  outcome.squares = std::bit_cast<uint64_t>(kernels.sum_of_squares(sum.data(), with.count));
  loops.add(sum.data(), piece, with.count);
  outcome.added = Comparable<float>(sum.contents());
  loops.store(sum.data(), piece, with.count);
  outcome.stored = sum.contents();
  Aligned exact(with.exact_sums);
  outcome.inexact = loops.add_exact(exact.data(), piece, with.count);
  outcome.added_exact = Comparable<double>(exact.contents());
  Aligned narrow(with.sums);
  kernels.round(narrow.data(), exact.data(), with.count);
  outcome.rounded = Comparable<float>(narrow.contents());
  kernels.round(exact.data(), exact.data(), with.count);
  Bytes front = exact.contents();
  front.resize(with.count * sizeof(float));
  outcome.rounded_in_place = Comparable<float>(front);
  loops.store_exact(exact.data(), piece, with.count);
  outcome.stored_exact = Comparable<double>(exact.contents());
  CHECK((sum.guarded() && exact.guarded() && narrow.guarded()));
  return outcome;
}

TEST_CASE("all instruction sets compute the same bits, of any values, at any size and alignment",
          "[add_kernels]") {
  Random random(Catch::rngSeed());
  for (size_t round = 0; round < 300; ++round) {
    const size_t count = round < 70 ? round : random() % 3000;
    const bool bf16 = random() % 2 == 0;
    const Case with = {.count = count,
                       .sums = BytesOf(AnyBits<uint32_t>(random, count)),
                       .exact_sums = BytesOf(AnySums(random, count)),
                       .piece = bf16 ? BytesOf(AnyBits<uint16_t>(random, count))
                                     : BytesOf(AnyBits<uint32_t>(random, count)),
                       .shift = random() % 64};
    Outcome expected = Run(InstructionSet::kPortable, bf16, with);
    CHECK(expected.rounded == expected.rounded_in_place);
    const bool nan = std::isnan(std::bit_cast<double>(expected.squares));
    for (const InstructionSet set : Sets()) {
      INFO(ToString(set) << ", " << count << " elements, BF16: " << bf16);
      Outcome found = Run(set, bf16, with);
      CHECK(nan == std::isnan(std::bit_cast<double>(found.squares)));
      if (nan) found.squares = expected.squares;
      CHECK((found == expected));
    }
  }
}

TEST_CASE("an FP64 addition is called rounded exactly if it is, and only if it is finite",
          "[add_kernels]") {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  Random random(Catch::rngSeed());
  size_t rounded = 0;
  for (size_t round = 0; round < 20'000; ++round) {
    // Exponents at most 60 apart: long double has room for the true sum if that has no more bits.
    const float piece = std::ldexp(static_cast<float>(static_cast<int32_t>(random()) >> 8),
                                   static_cast<int>(random() % 40));
    double sum = std::ldexp(static_cast<double>(static_cast<int64_t>(random()) >> 11),
                            static_cast<int>(random() % 8));
    if (random() % 2 == 0) sum = static_cast<double>(static_cast<float>(sum));
    const double computed = sum + piece;
    // Knuth's TwoSum: the error of an FP64 sum is itself an FP64 number.
    const double part = computed - sum;
    const double error = (sum - (computed - part)) + (piece - part);
    for (const InstructionSet set : Sets()) {
      Aligned memory(BytesOf(std::vector<double>{sum}));
      const Bytes bytes = BytesOf(std::vector<float>{piece});
      const bool told = AddKernelsFor(set).fp32.add_exact(memory.data(), bytes.data(), 1);
      CHECK(told == (error != 0));
      CHECK(ValuesOf<double>(memory.contents())[0] == computed);
      if (told) {  // the error is the true one
        CHECK(static_cast<long double>(sum) + piece == static_cast<long double>(computed) + error);
      }
    }
    rounded += error != 0 ? 1 : 0;
  }
  CHECK(rounded > 1000);
  CHECK(rounded < 19'000);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const InstructionSet set : Sets()) {
    for (const float piece : {kInfinity, -kInfinity, kNan}) {
      Aligned memory(BytesOf(std::vector<double>{1.5, kInfinity, kNan}));
      const Bytes bytes = BytesOf(std::vector<float>(3, piece));
      CHECK_FALSE(AddKernelsFor(set).fp32.add_exact(memory.data(), bytes.data(), 3));
    }
  }
}

TEST_CASE("FP64 pieces are stored and added with the same bits by all instruction sets",
          "[add_kernels]") {
  Random random(Catch::rngSeed());
  for (size_t round = 0; round < 100; ++round) {
    const size_t count = round < 40 ? round : random() % 3000;
    const std::vector<double> sums = AnySums(random, count);
    std::vector<double> piece = AnySums(random, count);
    for (size_t i = 0; i < count; i += 3) piece[i] = -sums[i];  // exact
    bool rounded = false;
    std::vector<double> added(count);
    for (size_t i = 0; i < count; ++i) {
      const double sum = sums[i] + piece[i];
      rounded = rounded ||
                (std::isfinite(sum) && (sum - sums[i] != piece[i] || sum - piece[i] != sums[i]));
      added[i] = sum;
    }
    Bytes shifted(random() % 64);
    const size_t shift = shifted.size();
    const Bytes bytes = BytesOf(piece);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    for (const InstructionSet set : Sets()) {
      INFO(ToString(set) << ", " << count << " elements");
      const AddLoops& loops = AddKernelsFor(set).fp64;
      Aligned memory(BytesOf(sums));
      CHECK(loops.add_exact(memory.data(), shifted.data() + shift, count) == rounded);
      CHECK((Comparable<double>(memory.contents()) == Comparable<double>(BytesOf(added))));
      loops.store_exact(memory.data(), shifted.data() + shift, count);
      CHECK((memory.contents() == bytes));
      CHECK(memory.guarded());
    }
  }
}

TEST_CASE("the sum of squares is finite exactly if all values are, and near the true one",
          "[add_kernels]") {
  Random random(Catch::rngSeed());
  for (const size_t count : {1, 15, 16, 17, 1000, 65'536}) {
    std::vector<float> values = gradients::RealisticF32(random, count);
    values[random() % count] = std::numeric_limits<float>::max();
    values[random() % count] = std::numeric_limits<float>::denorm_min();
    long double expected = 0;
    for (const float value : values) expected += static_cast<long double>(value) * value;
    for (const InstructionSet set : Sets()) {
      Aligned memory(BytesOf(values));
      const double found = AddKernelsFor(set).sum_of_squares(memory.data(), count);
      CHECK(std::abs(found - expected) <= 65'536 * 0x1p-53L * expected);
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> spoilt = values;
        spoilt[random() % count] = bad;
        Aligned bad_memory(BytesOf(spoilt));
        CHECK_FALSE(std::isfinite(AddKernelsFor(set).sum_of_squares(bad_memory.data(), count)));
      }
    }
  }
}

}  // namespace
}  // namespace dws
