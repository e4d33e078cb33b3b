#include "common/memory/staged_writes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace dws {
namespace {

std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_CASE("a scatter writes exactly the staged elements of every width", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    std::vector<std::byte> memory = RandomBytes(10'000 * width, random);
    std::vector<std::byte> expected = memory;

    std::vector<uint32_t> elements(10'000);
    std::iota(elements.begin(), elements.end(), 0u);
    std::shuffle(elements.begin(), elements.end(), random);
    elements.resize(20 + random() % 3000);  // random values: some of them are changes
    std::vector<uint32_t> offsets;
    for (const uint32_t element : elements) offsets.push_back(element * width);
    const std::vector<std::byte> values = RandomBytes(offsets.size() * width, random);
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(i * width), width,
                  expected.begin() + offsets[i]);
    }

    StagedWrites staged;
    staged.Append(memory.data(), width, offsets, values);
    CHECK(memory != expected);
    staged.Scatter();
    CHECK(memory == expected);
  }
}

TEST_CASE("a scatter that was interrupted can be repeated", "[memory]") {
  std::vector<std::byte> memory(64);
  StagedWrites staged;
  for (uint32_t i = 0; i < 8; ++i) {
    const std::vector<uint32_t> offsets = {i * 8};
    const std::vector<std::byte> value(8, static_cast<std::byte>(i + 1));
    staged.Append(memory.data(), 8, offsets, value);
  }
  staged.Seal();
  staged.ScatterShare(0, 3);
  staged.Scatter();
  const std::vector<std::byte> once = memory;
  staged.Scatter();
  CHECK(memory == once);
  for (size_t i = 0; i < memory.size(); ++i) {
    CHECK(memory[i] == static_cast<std::byte>(i / 8 + 1));
  }
}

TEST_CASE("contiguous pieces are copied to their addresses", "[memory]") {
  std::vector<std::byte> memory(100);
  StagedWrites staged;
  staged.AppendCopy(memory.data() + 10, AsBytes("hello"));
  staged.AppendCopy(memory.data() + 50, {});
  CHECK(staged.run_count() == 1);
  staged.Scatter();
  CHECK(AsText(ByteSpan(memory).subspan(10, 5)) == "hello");
  CHECK(memory[9] == std::byte{0});
  CHECK(memory[15] == std::byte{0});
}

TEST_CASE("staged values keep their addresses while more memory is added", "[memory]") {
  // Many chunks, an entry larger than a chunk, and memory taken over from others in between.
  std::vector<std::byte> memory(8 << 20);
  std::vector<std::byte> expected(memory.size());
  StagedWrites all;
  size_t at = 0;
  for (int part = 0; part < 4; ++part) {
    StagedWrites staged;
    for (const size_t size : {size_t{700'000}, size_t{1'300'000}, size_t{17}}) {
      const std::vector<std::byte> bytes(size, static_cast<std::byte>(part * 3 + 1));
      staged.AppendCopy(memory.data() + at, bytes);
      std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<ptrdiff_t>(at));
      at += size;
    }
    all.AppendRuns(staged, 0, staged.run_count());
    all.TakeMemory(std::move(staged));
    CHECK(staged.run_count() == 0);   // NOLINT: by contract
    CHECK(staged.size_bytes() == 0);  // NOLINT
    all.AppendCopy(memory.data() + at, AsBytes("x"));
    expected[at++] = static_cast<std::byte>('x');
  }
  CHECK(all.run_count() == 16);
  CHECK(all.size_bytes() >= at);
  const StagedWrites moved = std::move(all);
  CHECK(all.size_bytes() == 0);  // NOLINT
  moved.Scatter();
  CHECK(memory == expected);
}

TEST_CASE("a later run overwrites an earlier one at the same address", "[memory]") {
  std::vector<std::byte> memory(4);
  StagedWrites staged;
  const std::vector<uint32_t> offsets = {0};
  staged.Append(memory.data(), 2, offsets, AsBytes("ab"));
  staged.Append(memory.data(), 2, offsets, AsBytes("cd"));
  staged.Scatter();
  CHECK(AsText(ByteSpan(memory).first(2)) == "cd");
}

TEST_CASE("a run is filled in its room and only filled elements are written", "[memory]") {
  std::vector<std::byte> memory(16, std::byte{'.'});
  StagedWrites staged;
  StagedWrites::Room one = staged.Open(memory.data(), 2, 1, 3);
  StagedWrites::Room other = staged.Open(memory.data() + 8, 1, 5, 5);
  const StagedWrites::Room unused = staged.Open(memory.data(), 8, 7, 7);
  CHECK(unused.left == 7);
  one.offsets[0] = 0;
  std::memcpy(one.values, "ab", 2);
  staged.Fill(one, 1);
  other.offsets[0] = 7;
  other.offsets[1] = 0;
  std::memcpy(other.values, "xy", 2);
  staged.Fill(other, 2);
  one.offsets[0] = 4;
  std::memcpy(one.values, "cd", 2);
  staged.Fill(one, 1);
  CHECK(one.left == 1);
  StagedWrites kept;
  kept.AppendRuns(staged, 0, staged.run_count());
  CHECK(kept.run_count() == 2);
  kept.TakeMemory(std::move(staged));
  kept.Scatter();
  CHECK(AsText(memory) == "ab..cd..y......x");
}

TEST_CASE("allocations are taken from the budget first and never exceed it", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const uint64_t bytes_max : {0, 100, 5'000, 300'000, 9'000'000, 50'000'000}) {
    INFO("a budget of " << bytes_max << " bytes");
    StagingBudget budget(bytes_max);
    std::vector<std::byte> memory(8 << 20);
    // Two of them, like two workers, with runs of every size.
    StagedWrites staged[2] = {StagedWrites(budget), StagedWrites(budget)};
    uint64_t filled = 0;
    for (int i = 0; i < 100'000 && !budget.passed(); ++i) {
      StagedWrites& writes = staged[random() % 2];
      const uint32_t width = 1u << random() % 4;
      const auto count = static_cast<uint32_t>(random() % (size_t{1} << random() % 17) + 1);
      if (random() % 4 == 0) {
        writes.AppendCopy(memory.data(), ByteSpan(memory).first(count));
        filled += count;
      } else {
        const uint32_t count_max = count + static_cast<uint32_t>(random() % 100'000);
        StagedWrites::Room room = writes.Open(memory.data(), width, count, count_max);
        REQUIRE((room.left == 0 ? budget.passed() : room.left >= count && room.left <= count_max));
        if (room.left == 0) break;
        filled += StagedWrites::ElementsBytes(width, room.left);
        std::memset(room.offsets, 0, room.left * sizeof(uint32_t));
        std::memset(room.values, 0, size_t{room.left} * width);
        writes.Fill(room, room.left);
      }
      REQUIRE(budget.bytes() <= bytes_max);
      REQUIRE(staged[0].size_bytes() + staged[1].size_bytes() <= budget.bytes());
    }
    CHECK(budget.passed());
    // Unused are at most an empty chunk of each, and tails of chunks that were too short for the
    // next run.
    if (bytes_max > 40'000'000) CHECK(filled > bytes_max / 4 * 3);

    const uint64_t held = staged[0].size_bytes();
    // Larger than any chunk, so it does not fit into the rest of one, which is already counted.
    staged[0].AppendCopy(memory.data(), ByteSpan(memory).first(5 << 20));
    CHECK(staged[0].size_bytes() == held);
    // Merging needs no more of the budget.
    StagedWrites all;
    all.ReserveRuns(staged[0].run_count() + staged[1].run_count());
    for (StagedWrites& writes : staged) all.AppendRuns(writes, 0, writes.run_count());
    CHECK(all.size_bytes() + staged[0].size_bytes() + staged[1].size_bytes() <= bytes_max);
    for (StagedWrites& writes : staged) all.TakeMemory(std::move(writes));
    all.Seal();
    CHECK(all.size_bytes() <= bytes_max);
    all.Scatter();
  }
}

TEST_CASE("runs slightly larger than half a chunk do not waste the other half", "[memory]") {
  std::vector<std::byte> memory(16);
  StagingBudget budget(uint64_t{64} << 20);
  StagedWrites staged(budget);
  uint64_t filled = 0;
  while (true) {
    StagedWrites::Room room = staged.Open(memory.data(), 2, 1'000, 360'000);  // 2.1 of 4 MiB
    if (room.left == 0) break;
    filled += StagedWrites::ElementsBytes(2, room.left);
  }
  CHECK(filled > (uint64_t{62} << 20));
  CHECK(budget.bytes() <= (uint64_t{64} << 20));
}

TEST_CASE("shares write everything once and evenly for any runs", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    // Runs of 1 to 3000 elements of random widths, and pieces, each in an area of its own.
    std::vector<std::byte> memory(size_t{4} << 20);
    std::vector<std::byte> expected = memory;
    StagedWrites staged;
    uint64_t cost = 0;
    for (size_t at = 0; at + 40'000 <= memory.size(); at += 40'000) {
      const uint32_t width = 1u << (random() % 4);
      const size_t most = random() % 3 == 0 ? 3000 : 3;
      const size_t count = 1 + random() % most;
      if (random() % 4 == 0) {
        const std::vector<std::byte> bytes = RandomBytes(count * 8, random);
        staged.AppendCopy(memory.data() + at, bytes);
        std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<ptrdiff_t>(at));
        cost += CeilDiv(bytes.size(), 128);
        continue;
      }
      std::vector<uint32_t> offsets(count);
      for (size_t i = 0; i < count; ++i) offsets[i] = static_cast<uint32_t>(i * (1 + width));
      const std::vector<std::byte> values = RandomBytes(count * width, random);
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(expected.data() + at + offsets[i], values.data() + i * width, width);
      }
      staged.Append(memory.data() + at, width, offsets, values);
      cost += count;
    }
    staged.Seal();
    const size_t shares = 1 + random() % 40;
    std::vector<size_t> order(shares);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t share : order) {
      const std::vector<std::byte> before = memory;
      staged.ScatterShare(share, shares);
      // A share changes at most its part: up to 128 bytes for each unit of its cost.
      size_t changed = 0;
      for (size_t i = 0; i < memory.size(); ++i) changed += memory[i] != before[i] ? 1 : 0;
      CHECK(changed <= (cost / shares + 1) * 128);
    }
    REQUIRE(memory == expected);
  }
}

TEST_CASE("without staged elements nothing is written in any number of shares", "[memory]") {
  StagedWrites staged;
  staged.Seal();
  staged.Scatter();
  for (size_t share = 0; share < 3; ++share) staged.ScatterShare(share, 3);
  CHECK(staged.run_count() == 0);
}

}  // namespace
}  // namespace dws
