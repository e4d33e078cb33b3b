#include "common/memory/staged_writes.h"

#include <algorithm>
#include <catch2/catch.hpp>
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

TEST_CASE("a scatter writes exactly the staged elements, of every width", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    std::vector<std::byte> memory = RandomBytes(10'000 * width, random);
    std::vector<std::byte> expected = memory;

    std::vector<uint32_t> elements(10'000);
    std::iota(elements.begin(), elements.end(), 0u);
    std::shuffle(elements.begin(), elements.end(), random);
    elements.resize(random() % 3000);
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
  staged.Scatter(0, 3);
  staged.Scatter();
  const std::vector<std::byte> once = memory;
  staged.Scatter();
  CHECK(memory == once);
  for (size_t i = 0; i < memory.size(); ++i) {
    CHECK(memory[i] == static_cast<std::byte>(i / 8 + 1));
  }
}

TEST_CASE("contiguous pieces are copied where they belong", "[memory]") {
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

TEST_CASE("values stay where they are while more is staged and merged", "[memory]") {
  // Many chunks, an entry larger than a chunk, and merges in between.
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
    all.Merge(std::move(staged));
    CHECK(staged.run_count() == 0);   // NOLINT: promised
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

TEST_CASE("later runs win over earlier ones at the same address", "[memory]") {
  std::vector<std::byte> memory(4);
  StagedWrites staged;
  const std::vector<uint32_t> offsets = {0};
  staged.Append(memory.data(), 2, offsets, AsBytes("ab"));
  staged.Append(memory.data(), 2, offsets, AsBytes("cd"));
  staged.Scatter();
  CHECK(AsText(ByteSpan(memory).first(2)) == "cd");
}

}  // namespace
}  // namespace dws
