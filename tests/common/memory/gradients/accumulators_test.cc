#include "common/memory/gradients/accumulators.h"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "common/model/limits.h"
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
using gradients::ValuesOf;

constexpr uint64_t kBlock = limits::kBlockElements;

// Uneven units: empty ones, ones below a vector and above a block.
std::vector<GradientUnit> RandomUnits(Random& random) {
  std::vector<GradientUnit> units(1 + random() % 6);
  for (size_t u = 0; u < units.size(); ++u) {
    constexpr uint64_t kScales[] = {1, 1, 40, 5000, 3 * kBlock};
    units[u] = {.name = std::to_string(u), .elements = random() % kScales[random() % 5]};
  }
  return units;
}

struct AnyPiece {
  size_t unit;
  DType dtype;
  Bytes bytes;
};

std::vector<AnyPiece> RandomPieces(Random& random, const std::vector<GradientUnit>& units) {
  std::vector<AnyPiece> pieces;
  for (size_t p = 0; p < 3 * units.size(); ++p) {
    const size_t unit = random() % units.size();
    const bool bf16 = random() % 2 == 0;
    pieces.push_back(
        {.unit = unit,
         .dtype = bf16 ? DType::kBF16 : DType::kF32,
         .bytes = bf16 ? BytesOf(gradients::RealisticBf16(random, units[unit].elements))
                       : BytesOf(gradients::RealisticF32(random, units[unit].elements))});
  }
  return pieces;
}

std::vector<float> Numbers(const AnyPiece& piece) {
  if (piece.dtype == DType::kF32) return ValuesOf<float>(piece.bytes);
  std::vector<float> numbers;
  for (const uint16_t bits : ValuesOf<uint16_t>(piece.bytes)) numbers.push_back(FromBf16(bits));
  return numbers;
}

// The gradients of all units, and what was told of them.
struct Sealed {
  std::vector<Bytes> gradients;
  uint64_t of_squares = 0;
  bool exact = false;

  friend bool operator==(const Sealed&, const Sealed&) = default;
};

Sealed Seal(Accumulators& sums, size_t units, ThreadPool& pool) {
  const Result<GradientSum> told = sums.Seal(pool);
  REQUIRE(told.ok());
  CHECK(told->finite);
  Sealed sealed = {.gradients = {},
                   .of_squares = std::bit_cast<uint64_t>(told->of_squares),
                   .exact = told->exact};
  for (size_t u = 0; u < units; ++u) sealed.gradients.push_back(BytesOf(Gradient(sums, u)));
  return sealed;
}

TEST_CASE(
    "random layouts have the sum of their pieces, minibatch by minibatch, and the same bits "
    "with 1 to 4 threads",
    "[accumulators]") {
  const bool exact = GENERATE(true, false);
  Random random(Catch::rngSeed());
  for (size_t round = 0; round < 12; ++round) {
    const std::vector<GradientUnit> units = RandomUnits(random);
    const std::vector<std::vector<AnyPiece>> minibatches = {RandomPieces(random, units),
                                                            RandomPieces(random, units)};
    std::vector<Sealed> alone;
    for (size_t threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads - 1);
      Accumulators sums = Create(units, exact);
      for (size_t m = 0; m < minibatches.size(); ++m) {
        for (const AnyPiece& piece : minibatches[m]) {
          REQUIRE(sums.Add(PieceOf(piece.unit, piece.dtype, piece.bytes), pool).ok());
        }
        const Sealed sealed = Seal(sums, units.size(), pool);
        if (threads == 1) alone.push_back(sealed);
        CHECK((sealed == alone[m]));
        sums.LetGo();
      }
    }
    for (size_t m = 0; m < minibatches.size(); ++m) {
      std::map<size_t, std::vector<double>> expected;
      for (size_t u = 0; u < units.size(); ++u) expected[u].resize(units[u].elements);
      std::map<size_t, std::vector<float>> in_order;
      for (const AnyPiece& piece : minibatches[m]) {
        const std::vector<float> numbers = Numbers(piece);
        const bool first = !in_order.contains(piece.unit);
        std::vector<float>& sum = in_order[piece.unit];
        if (first) sum = numbers;
        for (size_t i = 0; i < numbers.size(); ++i) {
          if (!first) sum[i] += numbers[i];
          expected[piece.unit][i] += numbers[i];
        }
      }
      for (size_t u = 0; u < units.size(); ++u) {
        const std::vector<float> found = ValuesOf<float>(alone[m].gradients[u]);
        REQUIRE(found.size() == units[u].elements);
        for (size_t i = 0; i < found.size(); ++i) {
          const float wanted = exact                  ? static_cast<float>(expected[u][i])
                               : in_order.contains(u) ? in_order[u][i]
                                                      : 0;
          REQUIRE(found[i] == wanted);
        }
      }
    }
  }
}

TEST_CASE("the first piece of each block is stored, and a block without one is zeros",
          "[accumulators]") {
  const bool exact = GENERATE(true, false);
  ThreadPool pool(1);
  constexpr uint64_t kElements = 3 * kBlock + 10;
  Accumulators sums =
      Create({{.name = "a", .elements = 7}, {.name = "b", .elements = kElements}}, exact);
  const auto filled = [](uint64_t count, float value) {
    return BytesOf(std::vector<float>(count, value));
  };
  const Bytes whole = filled(kElements, 100);
  REQUIRE(sums.Add(PieceOf(1, DType::kF32, whole), pool).ok());
  if (GENERATE(true, false)) REQUIRE(sums.Seal(pool).ok());  // or the minibatch is abandoned
  sums.LetGo();

  const Bytes ends = filled(kBlock + 10, 2);
  const Bytes middle = filled(2 * kBlock, 3);
  const auto part = [](uint64_t first, uint64_t count, const Bytes& bytes) {
    return GradientPiece{.unit = 1,
                         .blocks = GradientBlocks{.first = first, .count = count},
                         .dtype = DType::kF32,
                         .bytes = bytes};
  };
  REQUIRE(sums.Add(part(2, 2, ends), pool).ok());
  REQUIRE(sums.Add(part(1, 2, middle), pool).ok());
  REQUIRE(sums.Add(part(4, 0, {}), pool).ok());
  REQUIRE(sums.Seal(pool).ok());
  CHECK(Gradient(sums, 0) == std::vector<float>(7, 0));
  const std::vector<float> found = Gradient(sums, 1);
  const float wanted[] = {0, 3, 5, 2};
  for (size_t i = 0; i < kElements; ++i) REQUIRE(found[i] == wanted[i / kBlock]);
}

TEST_CASE("a piece that does not fit is refused by name and changes nothing", "[accumulators]") {
  const bool exact = GENERATE(true, false);
  ThreadPool pool(0);
  constexpr uint64_t kElements = kBlock + 100;
  Accumulators sums =
      Create({{.name = "embed", .elements = kElements}, {.name = "none", .elements = 0}}, exact);
  Random random(Catch::rngSeed());
  const Bytes good = BytesOf(gradients::RealisticF32(random, kElements));
  REQUIRE(sums.Add(PieceOf(0, DType::kF32, good), pool).ok());

  Bytes bad(kElements * 8, std::byte{0x41});
  const auto refusal = [&](size_t unit, DType dtype, size_t size_bytes,
                           std::optional<GradientBlocks> blocks = {}) {
    const Status status = sums.Add(
        {.unit = unit, .blocks = blocks, .dtype = dtype, .bytes = ByteSpan(bad).first(size_bytes)},
        pool);
    CHECK(absl::IsInvalidArgument(status));
    return std::string(Message(status));
  };
  using Catch::Matchers::Contains;
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  CHECK_THAT(refusal(2, DType::kF32, kElements * 4), Contains("unit below 2, found 2"));
  CHECK_THAT(refusal(0, DType::kF16, kElements * 2), Contains("unit embed") && Contains("F16"));
  CHECK_THAT(refusal(0, DType::kF64, kElements * 8 - (exact ? 8 : 0)), Contains("F64"));
  CHECK_THAT(refusal(0, DType::kF32, kElements * 4 - 4), Contains("embed: expected 262544 bytes"));
  CHECK_THAT(refusal(0, DType::kF32, kElements * 4 - 1), Contains("found 262543"));
  CHECK_THAT(refusal(0, DType::kBF16, kElements * 4), Contains("elements of BF16"));
  CHECK_THAT(refusal(0, DType::kF32, 0), Contains("found 0"));
  CHECK_THAT(refusal(1, DType::kF32, 4), Contains("unit none"));
  CHECK_THAT(refusal(0, DType::kF32, 4, GradientBlocks{.first = 1, .count = 2}),
             Contains("2 blocks from block 1"));
  CHECK_THAT(refusal(0, DType::kF32, 4, GradientBlocks{.first = 3, .count = 0}),
             Contains("0 blocks from block 3"));
  CHECK_THAT(refusal(0, DType::kF32, 4, GradientBlocks{.first = 1, .count = kMost}),
             Contains("expected blocks of its 2"));
  CHECK_THAT(refusal(0, DType::kF32, kBlock * 4, GradientBlocks{.first = 1, .count = 1}),
             Contains("expected 400 bytes"));
  REQUIRE(sums.Add(PieceOf(1, DType::kBF16, {}), pool).ok());

  const Result<GradientSum> told = sums.Seal(pool);
  REQUIRE(told.ok());
  CHECK((BytesOf(Gradient(sums, 0)) == good));
  CHECK(absl::IsFailedPrecondition(sums.Add(PieceOf(0, DType::kF32, good), pool)));
  CHECK(absl::IsFailedPrecondition(sums.Seal(pool).status()));
  CHECK((BytesOf(Gradient(sums, 0)) == good));
}

TEST_CASE("sums that need more memory than they may take are refused with both figures",
          "[accumulators]") {
  const std::vector<GradientUnit> units = {
      {.name = "a", .elements = 17}, {.name = "b", .elements = 0}, {.name = "c", .elements = 100}};
  // 17 and 100 elements take 32 and 112.
  for (const auto& [exact, bytes] : {std::pair{false, 144 * 4}, {true, 144 * 8}}) {
    const auto created = [&, exact = exact](uint64_t bytes_max) {
      return Accumulators::Create(units, {.exact = exact, .bytes_max = bytes_max});
    };
    const Status refused = created(static_cast<uint64_t>(bytes) - 1).status();
    CHECK(absl::IsResourceExhausted(refused));
    CHECK_THAT(std::string(Message(refused)), Catch::Matchers::Contains(fmt::format(
                                                  "at most {} bytes, found {}", bytes - 1, bytes)));
    const Result<Accumulators> made = created(static_cast<uint64_t>(bytes));
    REQUIRE(made.ok());
    CHECK(made->size_bytes() == static_cast<uint64_t>(bytes));
  }
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const uint64_t elements : {kMost, kMost / 8, limits::kRegionBytesMax / 4}) {
    CHECK(absl::IsInvalidArgument(
        Accumulators::Create({{.name = "a", .elements = 1}, {.name = "b", .elements = elements}},
                             {.exact = false, .bytes_max = kMost})
            .status()));
  }
  CHECK(absl::IsInvalidArgument(
      Accumulators::Create(std::vector<GradientUnit>(limits::kTrainUnitsMax + 1),
                           {.bytes_max = kMost})
          .status()));
}

TEST_CASE("the rank maps the gradients, and what it writes there ends with the minibatch",
          "[accumulators]") {
  const bool exact = GENERATE(true, false);
  ThreadPool pool(0);
  Accumulators sums =
      Create({{.name = "a", .elements = 5}, {.name = "b", .elements = 2 * kBlock + 1}}, exact);
  const Result<HostRegion> rank =
      HostRegion::Map(UniqueFd(::fcntl(sums.descriptor().get(), F_DUPFD_CLOEXEC, 0)),
                      sums.size_bytes(), Access::kReadWrite);
  REQUIRE(rank.ok());
  Random random(Catch::rngSeed());
  for (int minibatch = 0; minibatch < 3; ++minibatch) {
    const Bytes piece = BytesOf(gradients::RealisticF32(random, 2 * kBlock + 1));
    REQUIRE(sums.Add(PieceOf(1, DType::kF32, piece), pool).ok());
    REQUIRE(sums.Seal(pool).ok());
    const MutableByteSpan mapped = rank->mutable_bytes().subspan(sums.OffsetBytes(1), piece.size());
    CHECK(std::equal(mapped.begin(), mapped.end(), piece.begin()));
    std::fill(mapped.begin(), mapped.end(), std::byte{0xFF});
    sums.LetGo();
  }
}

TEST_CASE("the sum of a host's pieces is a piece for an owner elsewhere", "[accumulators]") {
  ThreadPool pool(0);
  constexpr uint64_t kElements = kBlock + 77;
  Random random(Catch::rngSeed());
  const std::vector<GradientUnit> units = {{.name = "none", .elements = 0},
                                           {.name = "layer", .elements = kElements}};
  Accumulators host = Create(units, true);
  Accumulators owner = Create(units, true);
  Accumulators direct = Create(units, true);
  for (int p = 0; p < 6; ++p) {
    // The sum of some has more bits than FP32 numbers.
    const Bytes piece = BytesOf(gradients::RealisticBf16(random, kElements));
    REQUIRE(direct.Add(PieceOf(1, DType::kBF16, piece), pool).ok());
    REQUIRE((p < 4 ? host : owner).Add(PieceOf(1, DType::kBF16, piece), pool).ok());
  }
  CHECK(host.sum_dtype() == DType::kF64);
  CHECK(host.all_exact());
  CHECK(host.Sums(0).empty());
  REQUIRE(
      owner.Add({.unit = 1, .blocks = {}, .dtype = DType::kF64, .bytes = host.Sums(1)}, pool).ok());
  const Result<GradientSum> of_owner = owner.Seal(pool);
  const Result<GradientSum> expected = direct.Seal(pool);
  REQUIRE(of_owner.ok());
  REQUIRE(expected.ok());
  CHECK(of_owner->exact);
  CHECK((Gradient(owner, 1) == Gradient(direct, 1)));
  CHECK(of_owner->of_squares == expected->of_squares);
}

TEST_CASE("the sums of a host are FP32 without exact mode, and say when an addition was rounded",
          "[accumulators]") {
  ThreadPool pool(0);
  const std::vector<GradientUnit> units = {{.name = "layer", .elements = 2}};
  const Bytes one = BytesOf(std::vector<float>{1, 2});
  const Bytes tiny = BytesOf(std::vector<float>{0x1p-60F, 0});
  Accumulators exact = Create(units, true);
  REQUIRE(exact.Add(PieceOf(0, DType::kF32, one), pool).ok());
  CHECK(exact.all_exact());
  REQUIRE(exact.Add(PieceOf(0, DType::kF32, tiny), pool).ok());
  CHECK_FALSE(exact.all_exact());
  exact.LetGo();
  CHECK(exact.all_exact());
  Accumulators plain = Create(units, false);
  REQUIRE(plain.Add(PieceOf(0, DType::kF32, one), pool).ok());
  REQUIRE(plain.Add(PieceOf(0, DType::kF32, one), pool).ok());
  CHECK(plain.sum_dtype() == DType::kF32);
  CHECK_FALSE(plain.all_exact());
  CHECK(ValuesOf<float>(plain.Sums(0)) == std::vector<float>{2, 4});
  const Bytes wide(16);
  CHECK_THAT(std::string(Message(plain.Add(PieceOf(0, DType::kF64, wide), pool))),
             Catch::Matchers::Contains("expected BF16 or F32, found F64"));
}

}  // namespace
}  // namespace dws
