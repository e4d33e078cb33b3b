// Every instruction set writes the same planes, to the bit.
#include "common/delta/kernels/pack.h"

#include <catch2/catch.hpp>

#include "common/delta/bits/element.h"
#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Bytes;
using samples::Random;

constexpr InstructionSet kAllSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};

std::vector<uint16_t> Positions(Random& random, uint32_t count, double density) {
  std::vector<uint16_t> positions;
  uint64_t at = random.Below(3);
  while (positions.size() < count && at <= 0xFFFF) {
    positions.push_back(static_cast<uint16_t>(at));
    while (!random.Chance(density)) ++at;
    ++at;
  }
  return positions;
}

// Positions of all sizes and shapes: dense, sparse, with one huge gap, at both ends.
std::vector<std::vector<uint16_t>> Shapes(Random& random) {
  std::vector<std::vector<uint16_t>> shapes = {{0}, {0xFFFF}, {0, 0xFFFF}, {0, 1, 0xFFFF}};
  for (uint32_t count = 1; count < 100; ++count) {
    shapes.push_back(Positions(random, count, 0.3));
    shapes.push_back(Positions(random, count, 0.01));
    std::vector<uint16_t> split = Positions(random, count, 1);
    for (size_t i = random.Below(split.size()); i < split.size(); ++i) {
      split[i] = static_cast<uint16_t>(split[i] + 65'000);
    }
    shapes.push_back(split);
  }
  std::vector<uint16_t> all(65'536);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  shapes.push_back(all);
  shapes.push_back(Positions(random, 65'536, 0.008));
  shapes.push_back(Positions(random, 65'536, 0.9));
  return shapes;
}

// What `write` writes after `lead` bits.
template <typename Write>
Bytes Written(uint64_t bits, uint32_t lead, Write write) {
  Bytes bytes(CeilDiv(bits + lead, 8) + BitWriter::kSlackBytes, std::byte{0xAA});
  BitWriter writer(bytes.data());
  writer.Put(LowBits(lead), lead);
  write(writer);
  writer.Put(1, 1);
  bytes.resize(static_cast<size_t>(writer.end() - bytes.data()));
  return bytes;
}

struct Scan {
  std::vector<uint64_t> signs;
  std::vector<uint16_t> exceptions;
  std::vector<uint64_t> magnitudes;

  friend bool operator==(const Scan&, const Scan&) = default;
};

Scan RunScan(InstructionSet set, const std::vector<uint64_t>& steps, uint32_t element_bits) {
  Scan result{.signs = std::vector<uint64_t>(CeilDiv(steps.size(), 64)),
              .exceptions = std::vector<uint16_t>(steps.size() + StepScan::kSlack),
              .magnitudes = std::vector<uint64_t>(steps.size() + StepScan::kSlack)};
  StepScan scan{.signs = result.signs.data(),
                .exceptions = result.exceptions.data(),
                .magnitudes = result.magnitudes.data()};
  ScanSteps(set, steps.data(), static_cast<uint32_t>(steps.size()), element_bits, scan);
  result.exceptions.resize(scan.exception_count);
  result.magnitudes.resize(scan.exception_count);
  return result;
}

}  // namespace

TEST_CASE("every instruction set writes the same planes of gaps", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (const std::vector<uint16_t>& positions : Shapes(random)) {
    const uint16_t* const at = positions.data();
    const auto count = static_cast<uint32_t>(positions.size());
    for (uint32_t k = 0; k < 16; ++k) {
      uint64_t sum = 0;
      int32_t last = -1;
      for (const uint16_t position : positions) {
        sum += static_cast<uint32_t>(position - last - 1) >> k;
        last = position;
      }
      const uint32_t lead = static_cast<uint32_t>(random.Below(8));
      const uint64_t bits = count * uint64_t{k} + sum + count + 1;
      const Bytes remainders = Written(
          bits, lead, [&](BitWriter& writer) { PackGapRemaindersPortable(at, count, k, writer); });
      const Bytes quotients = Written(
          bits, lead, [&](BitWriter& writer) { PackGapQuotientsPortable(at, count, k, writer); });
      for (const InstructionSet set : kAllSets) {
        if (set > MachineInstructionSet()) continue;
        INFO(ToString(set) << ": " << count << " positions, k " << k);
        REQUIRE(SumGapQuotients(set, at, count, k) == sum);
        REQUIRE(Written(bits, lead, [&](BitWriter& writer) {
                  PackGapRemainders(set, at, count, k, writer);
                }) == remainders);
        REQUIRE(Written(bits, lead, [&](BitWriter& writer) {
                  PackGapQuotients(set, at, count, k, writer);
                }) == quotients);
      }
    }
  }
}

TEST_CASE("every instruction set finds the same signs and exceptions", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (const uint32_t element_bits : {8u, 16u, 32u, 64u}) {
    const uint64_t mask = LowBits(element_bits);
    const uint64_t top = uint64_t{1} << (element_bits - 1);
    const uint64_t hostile[] = {2, mask - 1, top, top - 1, top + 1, 3};
    for (uint32_t count = 1; count < 300; ++count) {
      std::vector<uint64_t> steps;
      Scan expected{.signs = std::vector<uint64_t>(CeilDiv(count, 64))};
      for (uint32_t i = 0; i < count; ++i) {
        uint64_t step = random.Chance(0.5) ? 1 : mask;
        if (random.Chance(count % 3 == 0 ? 1 : 0.1)) step = hostile[random.Below(6)];
        steps.push_back(step);
        const uint64_t magnitude = step >= top ? (0 - step) & mask : step;
        if (step >= top) expected.signs[i / 64] |= uint64_t{1} << (i % 64);
        if (magnitude == 1) continue;
        expected.exceptions.push_back(static_cast<uint16_t>(i));
        expected.magnitudes.push_back(magnitude - 2);
      }
      for (const InstructionSet set : kAllSets) {
        if (set > MachineInstructionSet()) continue;
        INFO(ToString(set) << ": " << count << " steps of " << element_bits << " bits");
        REQUIRE(RunScan(set, steps, element_bits) == expected);
      }
    }
  }
}

}  // namespace dws::kernels
