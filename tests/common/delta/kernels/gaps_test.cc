// Every variant of the plane decoders gives the same results as the portable one, or refuses the
// same input, for sound planes and for arbitrary bytes.
#include "common/delta/kernels/gaps.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "common/base/instruction_set.h"
#include "common/delta/bits/bit_stream.h"
#include "common/delta/blocks/positions.h"

namespace dws {
namespace {

// Warns when there is nothing to compare.
bool HasAvx512() {
  if (MachineInstructionSet() == InstructionSet::kAvx512) return true;
  WARN("no AVX-512 here: nothing to compare with the portable kernel");
  return false;
}

// Bytes in an allocation of exactly their size: the sanitizer reports a read beyond it.
struct Planes {
  std::vector<std::byte> bytes;
  kernels::GapInput input;
};

Planes WritePlanes(const std::vector<uint16_t>& positions, uint32_t k, uint32_t skip) {
  std::vector<std::byte> bytes(positions.size() * 16 + (65'536u >> k) / 8 + 64);
  BitWriter writer(bytes.data());
  writer.Put(LowBits(skip), skip);
  WriteGapRemainders(positions, k, writer);
  WriteGapQuotients(positions, k, writer);
  Planes planes{.bytes = {bytes.data(), writer.end()}, .input = {}};
  planes.bytes.shrink_to_fit();
  planes.input = {.payload = planes.bytes.data(),
                  .size_bytes = planes.bytes.size(),
                  .remainders = skip,
                  .quotients = skip + positions.size() * k,
                  .k = k,
                  .count = static_cast<uint32_t>(positions.size())};
  return planes;
}

void CheckSame(const kernels::GapInput& input) {
  std::vector<uint64_t> scratch(input.count);
  std::vector<uint16_t> expected(input.count);
  std::vector<uint16_t> positions(input.count);
  const kernels::GapOutput portable =
      kernels::ReadGapsPortable(input, scratch.data(), expected.data());
  const kernels::GapOutput vector =
      kernels::ReadGapsAvx512(input, scratch.data(), positions.data());
  REQUIRE(vector.complete == portable.complete);
  if (!portable.complete) return;
  REQUIRE(vector.end == portable.end);
  REQUIRE(vector.last == portable.last);
  if (portable.last < 65'536) REQUIRE(positions == expected);
}

TEST_CASE("every instruction set reads the same positions", "[kernels]") {
  if (!HasAvx512()) return;
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    // From one change to all, evenly or in clusters.
    const uint32_t limit = 1 + static_cast<uint32_t>(random() % 65'536);
    const double density = std::pow(10.0, -4.0 * static_cast<double>(random() % 1000) / 1000);
    std::vector<uint16_t> positions;
    std::bernoulli_distribution changed(density);
    for (uint32_t i = 0; i < limit; ++i) {
      if (changed(random)) positions.push_back(static_cast<uint16_t>(i));
    }
    if (positions.empty()) positions.push_back(static_cast<uint16_t>(limit - 1));
    const uint32_t k = round % 2 == 0 ? ChooseGapCoding(positions).k : random() % 16;
    const Planes planes = WritePlanes(positions, k, random() % 8);
    INFO("k " << k << " count " << positions.size());
    CheckSame(planes.input);
    std::vector<uint64_t> scratch(positions.size());
    std::vector<uint16_t> read(positions.size());
    const kernels::GapOutput output =
        kernels::ReadGapsAvx512(planes.input, scratch.data(), read.data());
    REQUIRE(output.complete);
    REQUIRE(read == positions);

    kernels::GapInput cut = planes.input;
    cut.size_bytes = std::max<size_t>(CeilDiv(cut.quotients, 8), random() % (cut.size_bytes + 1));
    const std::vector<std::byte> fewer(
        planes.bytes.begin(), planes.bytes.begin() + static_cast<ptrdiff_t>(cut.size_bytes));
    cut.payload = fewer.data();
    CheckSame(cut);
  }
}

TEST_CASE("every instruction set accepts and refuses the same arbitrary planes", "[kernels]") {
  if (!HasAvx512()) return;
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 300);
    const uint64_t rare = random() % 4;  // zeros are long quotients
    for (std::byte& byte : bytes) {
      byte =
          rare != 0 && random() % (8 * rare) != 0 ? std::byte{0} : static_cast<std::byte>(random());
    }
    kernels::GapInput input{.payload = bytes.data(), .size_bytes = bytes.size()};
    input.k = random() % 16;
    input.remainders = random() % (bytes.size() * 8 + 1);
    const uint64_t room = bytes.size() * 8 - input.remainders;
    const uint64_t count_max = input.k == 0 ? 2000 : room / input.k;
    if (count_max == 0) continue;
    input.count = 1 + static_cast<uint32_t>(random() % count_max);
    input.quotients = input.remainders + uint64_t{input.count} * input.k;
    INFO("k " << input.k << " count " << input.count << " bytes " << bytes.size());
    CheckSame(input);
  }
}

TEST_CASE("every instruction set reads the same signs", "[kernels]") {
  if (!HasAvx512()) return;
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes(1 + random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    kernels::SignInput input{.payload = bytes.data(), .size_bytes = bytes.size()};
    input.begin = random() % (bytes.size() * 8);
    input.count = static_cast<uint32_t>(random() % (bytes.size() * 8 - input.begin + 1));
    input.plus = random();
    input.minus = random();
    std::vector<uint64_t> expected(input.count);
    std::vector<uint64_t> steps(input.count);
    kernels::ReadSignsPortable(input, expected.data());
    kernels::ReadSignsAvx512(input, steps.data());
    REQUIRE(steps == expected);
    for (uint32_t i = 0; i < input.count; ++i) {
      REQUIRE(expected[i] == (LoadBits(bytes, input.begin + i, 1) != 0 ? input.minus : input.plus));
    }
  }
}

}  // namespace
}  // namespace dws
