// Every instruction set sums the same digest, at every alignment and tail.
#include "common/model/digest/digest_kernels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

// The vector instruction sets of this machine.
std::vector<InstructionSet> VectorSets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set <= MachineInstructionSet()) sets.push_back(set);
  }
  return sets;
}

// Numbers whose products carry between halves, or do not carry at all.
uint64_t Word(Random& random) {
  constexpr uint64_t kHostile[] = {
      0, 1, ~uint64_t{0}, 0xFFFFFFFF, uint64_t{1} << 63, uint64_t{1} << 32, ~uint64_t{0xFFFFFFFF}};
  return random.Chance(0.3) ? kHostile[random.Below(std::size(kHostile))] : random.Next();
}

}  // namespace

TEST_CASE("every instruction set sums the same digest of bytes", "[digest]") {
  Random random(samples::TestSeed());
  Bytes bytes(8 * 300 + 64);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) StoreLe(bytes.data() + at, Word(random));
  for (const InstructionSet set : VectorSets()) {
    INFO(ToString(set));
    for (size_t offset = 0; offset < 64; ++offset) {
      const uint64_t count = random.Below(300);
      const uint64_t first = Word(random);
      REQUIRE(digest_kernels::MixRun(set, bytes.data() + offset, count, first) ==
              digest_kernels::MixRunPortable(bytes.data() + offset, count, first));
    }
    for (uint64_t count = 0; count < 40; ++count) {
      REQUIRE(digest_kernels::MixRun(set, bytes.data(), count, 7) ==
              digest_kernels::MixRunPortable(bytes.data(), count, 7));
    }
  }
}

TEST_CASE("every instruction set copies what it sums", "[digest]") {
  Random random(samples::TestSeed());
  constexpr size_t kLine = 64;
  Bytes from(8 * 300 + kLine);
  for (size_t at = 0; at + 8 <= from.size(); at += 8) StoreLe(from.data() + at, Word(random));
  alignas(kLine) std::array<std::byte, 8 * 300> to;
  std::vector<InstructionSet> sets = VectorSets();
  sets.push_back(InstructionSet::kPortable);
  for (const InstructionSet set : sets) {
    INFO(ToString(set));
    for (size_t offset = 0; offset < kLine; ++offset) {
      to.fill(std::byte{0xA5});
      const uint64_t count = random.Below(300);
      const uint64_t first = Word(random);
      const std::byte* const words = from.data() + offset;
      REQUIRE(digest_kernels::CopyRun(set, words, to.data(), count, first) ==
              digest_kernels::MixRunPortable(words, count, first));
      REQUIRE(std::equal(words, words + count * 8, to.data()));
      REQUIRE(std::all_of(to.begin() + static_cast<ptrdiff_t>(count * 8), to.end(),
                          [](std::byte byte) { return byte == std::byte{0xA5}; }));
    }
  }
}

TEST_CASE("a copy of any bytes to any place has the digest of the bytes", "[digest]") {
  Random random(samples::TestSeed());
  constexpr size_t kSizeMax = 700;
  Bytes from(kSizeMax + 64);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random.Next());
  for (size_t offset = 0; offset < 64; ++offset) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const size_t size = repeat < 10 ? random.Below(70) : random.Below(kSizeMax);
      const ByteSpan source = ByteSpan(from).subspan(random.Below(64), size);
      Bytes to(kSizeMax + 128, std::byte{0xA5});
      const uint64_t first = Word(random);
      INFO("to " << offset << ", " << size << " bytes");
      REQUIRE(CopyAndDigest(MutableByteSpan(to).subspan(offset, size), source, first) ==
              DigestBytes(source, first));
      REQUIRE(std::ranges::equal(source, MutableByteSpan(to).subspan(offset, size)));
      const auto untouched = [](std::byte byte) { return byte == std::byte{0xA5}; };
      REQUIRE(std::ranges::all_of(MutableByteSpan(to).first(offset), untouched));
      REQUIRE(std::ranges::all_of(MutableByteSpan(to).subspan(offset + size), untouched));
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // it is a race
TEST_CASE("the digest is that of the copy, even if the owner of the bytes writes meanwhile",
          "[digest]") {
  constexpr size_t kSize = (size_t{64} << 10) + 64;
  alignas(64) static std::array<std::byte, kSize> from;
  alignas(64) static std::array<std::byte, kSize> to;
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    for (uint64_t value = 1; !stop; ++value) {
      for (size_t at = 0; at < kSize; at += 8) {
        std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(from.data() + at))
            .store(value, std::memory_order_relaxed);
      }
    }
  });
  for (int repeat = 0; repeat < 300; ++repeat) {
    // Whole lines with a tail; a front; no line at all.
    const size_t offset = std::array<size_t, 3>{0, 24, 5}[repeat % 3];
    const MutableByteSpan copy = MutableByteSpan(to).subspan(offset, kSize - 64 + repeat % 8);
    const Digest digest = CopyAndDigest(copy, ByteSpan(from).first(copy.size()), 7);
    const Digest of_copy = DigestBytes(copy, 7);
    if (digest == of_copy) continue;
    stop = true;
    owner.join();
    FAIL("the digest of " << copy.size() << " bytes to offset " << offset
                          << " is not that of the copy");
  }
  stop = true;
  owner.join();
}
#endif

TEST_CASE("every instruction set sums the same difference of changed words", "[digest]") {
  Random random(samples::TestSeed());
  for (const InstructionSet set : VectorSets()) {
    INFO(ToString(set));
    for (size_t count = 0; count < 100; ++count) {
      // Grown to exactly their size, so that AddressSanitizer reports a read past the end.
      std::vector<uint16_t> numbers;
      std::vector<uint64_t> before;
      std::vector<uint64_t> after;
      Digest expected;
      const uint64_t first = Word(random);
      for (size_t i = 0; i < count; ++i) {
        numbers.push_back(random.Chance(0.1) ? 0xFFFF : static_cast<uint16_t>(random.Next()));
        before.push_back(Word(random));
        after.push_back(Word(random));
        expected += MixWord(first + numbers[i], after[i]) - MixWord(first + numbers[i], before[i]);
      }
      const ChangedWords changed{.numbers = numbers.data(),
                                 .before = before.data(),
                                 .after = after.data(),
                                 .count = count};
      REQUIRE(digest_kernels::MixChangesPortable(changed, first) == expected);
      REQUIRE(digest_kernels::MixChanges(set, changed, first) == expected);
      REQUIRE(DigestDifference(changed, first) == expected);
    }
  }
}

}  // namespace dws
