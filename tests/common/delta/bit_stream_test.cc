// Bit planes come back at every width and offset, and readers stay inside their span.
#include "common/delta/bits/bit_stream.h"

#include <catch2/catch.hpp>

#include "tests/common/delta/samples.h"

namespace dws {

using samples::Bytes;
using samples::Random;

TEST_CASE("numbers of every width come back from every offset", "[delta]") {
  Random random(samples::TestSeed());
  for (uint32_t width = 0; width <= 64; ++width) {
    for (uint32_t offset = 0; offset < 9; ++offset) {
      std::vector<uint64_t> values(37);
      for (uint64_t& value : values) value = random.Next() & LowBits(width);
      Bytes bytes(CeilDiv(offset + 37 * width, 8) + BitWriter::kSlackBytes);
      BitWriter writer(bytes.data());
      writer.Put(0, offset);
      for (const uint64_t value : values) writer.PutWide(value, width);
      const auto size = static_cast<size_t>(writer.end() - bytes.data());
      REQUIRE(size == CeilDiv(offset + 37 * width, 8));
      const Bytes exact(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      std::vector<uint64_t> read(37);
      ReadPlane(exact, offset, width, 37, read.data());
      REQUIRE(read == values);
      REQUIRE(EndsCleanly(exact, offset + 37 * width));
    }
  }
}

TEST_CASE("unary numbers are found again, however long", "[delta]") {
  Random random(samples::TestSeed());
  std::vector<uint64_t> zeros = {0, 1, 55, 56, 57, 63, 64, 65, 1000, 0, 0};
  for (int i = 0; i < 500; ++i) zeros.push_back(random.Below(i % 5 == 0 ? 300 : 3));
  Bytes bytes(100'000);
  BitWriter writer(bytes.data());
  writer.Put(5, 3);
  uint64_t bits = 0;
  for (const uint64_t count : zeros) {
    writer.PutUnary(count);
    bits += count + 1;
  }
  bytes.resize(static_cast<size_t>(writer.end() - bytes.data()));
  std::vector<uint64_t> ones(zeros.size());
  const auto count = static_cast<uint32_t>(zeros.size());
  REQUIRE(SelectOnes(bytes, 3, count, ones.data()) == 3 + bits);
  uint64_t next = 0;
  for (size_t i = 0; i < zeros.size(); ++i) {
    REQUIRE(ones[i] - next == zeros[i]);
    next = ones[i] + 1;
  }
  ones.resize(ones.size() + 1);
  REQUIRE_FALSE(SelectOnes(bytes, 3, count + 1, ones.data()).has_value());
}

TEST_CASE("a payload ends cleanly only with its last bit, padded with zeros", "[delta]") {
  const Bytes bytes = {std::byte{0xFF}, std::byte{0x07}};
  REQUIRE(EndsCleanly(bytes, 11));
  REQUIRE(EndsCleanly(bytes, 16));
  REQUIRE_FALSE(EndsCleanly(bytes, 10));
  REQUIRE_FALSE(EndsCleanly(bytes, 8));
  REQUIRE_FALSE(EndsCleanly(bytes, 17));
  REQUIRE(EndsCleanly({}, 0));
}

}  // namespace dws
