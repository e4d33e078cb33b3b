#include "sender_daemon/trainer/handover.h"

#include <catch2/catch.hpp>

#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

// A region filled with a fixed pattern.
HostRegion PatternRegion(size_t size) {
  auto created = CreateHostRegion("dws-test", size);
  DWS_CHECK(created.ok());
  const MutableByteSpan bytes = created->region.mutable_bytes();
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return std::move(created->region);
}

std::vector<MappedRegion> OneRegion(size_t size) {
  std::vector<MappedRegion> regions;
  regions.emplace_back(PatternRegion(size));
  return regions;
}

TEST_CASE("a resident shard cut by columns is read in slice order", "[handover]") {
  // The rank owns columns 2..6 of 8, as slices [2, 3) and [3, 6); its shard is a 5 x 4 array at
  // byte 6.
  const RankLayout layout = MakeLayout(
      {{.tensor = {.name = "w", .dtype = DType::kU16, .shape = {5, 8}, .cuts = {{1, {2, 3, 6}}}},
        .cells = {{1, 2}}}});
  const HostRegion expected = PatternRegion(64);
  const auto source =
      ResidentSource::Create(layout, OneRegion(64), std::vector<ShardPlace>{{.offset_bytes = 6}});
  REQUIRE(source.ok());
  const auto element = [&](size_t row, size_t column) {
    return LoadLe<uint16_t>(expected.bytes().data() + 6 + (row * 4 + column) * 2);
  };
  std::vector<std::byte> first(10);
  (*source)->Read({.slice = RankSlice(0), .block = 0}, first);
  std::vector<std::byte> second(30);
  (*source)->Read({.slice = RankSlice(1), .block = 0}, second);
  for (size_t row = 0; row < 5; ++row) {
    CHECK(LoadLe<uint16_t>(&first[row * 2]) == element(row, 0));
    for (size_t column = 0; column < 3; ++column) {
      CHECK(LoadLe<uint16_t>(&second[(row * 3 + column) * 2]) == element(row, column + 1));
    }
  }
}

TEST_CASE("a resident box of a grid is read in slice order", "[handover]") {
  // The rank owns rows 2..5 and columns 3..8 of [6, 9], a 3 x 5 array, as two rows of two slices.
  const RankLayout layout = MakeLayout({{.tensor = {.name = "w",
                                                    .dtype = DType::kU8,
                                                    .shape = {6, 9},
                                                    .cuts = {{0, {2, 3, 5}}, {1, {3, 4, 8}}}},
                                         .cells = {{1, 2}, {1, 2}}}});
  const HostRegion expected = PatternRegion(20);
  const auto source =
      ResidentSource::Create(layout, OneRegion(20), std::vector<ShardPlace>{{.offset_bytes = 5}});
  REQUIRE(source.ok());
  REQUIRE(layout.slice_count() == 4);
  for (uint32_t s = 0; s < 4; ++s) {
    const std::vector<DimRange> slice = layout.tensor(RankSlice(s)).Slice(layout.slices()[s].slice);
    std::vector<std::byte> read(slice[0].size() * slice[1].size());
    (*source)->Read({.slice = RankSlice(s), .block = 0}, read);
    size_t i = 0;
    for (uint64_t row = slice[0].begin - 2; row < slice[0].end - 2; ++row) {
      for (uint64_t column = slice[1].begin - 3; column < slice[1].end - 3; ++column, ++i) {
        CHECK(read[i] == expected.bytes()[5 + row * 5 + column]);
      }
    }
  }
}

TEST_CASE("a shard that reaches beyond its region is refused and its tensor is named",
          "[handover]") {
  const RankLayout layout =
      MakeLayout({{.tensor = {.name = "w", .dtype = DType::kU16, .shape = {5, 8}}}});
  for (const ShardPlace place : {ShardPlace{.offset_bytes = 6}, ShardPlace{.region = 1}}) {
    const auto source =
        ResidentSource::Create(layout, OneRegion(84), std::vector<ShardPlace>{place});
    CHECK(source.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(Message(source.status())).find("'w'") != std::string::npos);
  }
  CHECK(ResidentSource::Create(layout, OneRegion(80), std::vector<ShardPlace>{{}}).ok());
  CHECK_FALSE(ResidentSource::Create(layout, OneRegion(80), {}).ok());
}

TEST_CASE("a shard or a piece that begins inside an element is refused and its tensor is named",
          "[handover]") {
  for (const auto& [dtype, bytes] :
       {std::pair(DType::kU16, 2U), std::pair(DType::kF32, 4U), std::pair(DType::kF64, 8U)}) {
    const RankLayout layout =
        MakeLayout({{.tensor = {.name = "w", .dtype = dtype, .shape = {4, 2}}}});
    const HostRegion bucket = PatternRegion(100);
    for (uint64_t offset = 0; offset <= 16; ++offset) {
      const Status shard = ResidentSource::Create(layout, OneRegion(100),
                                                  std::vector<ShardPlace>{{.offset_bytes = offset}})
                               .status();
      const Status piece =
          BucketSource::Create(layout, bucket.bytes(),
                               {{.slice = RankSlice(0), .block_count = 1, .offset_bytes = offset}})
              .status();
      INFO(bytes << " bytes at " << offset);
      for (const Status& status : {shard, piece}) {
        CHECK(status.ok() == (offset % bytes == 0));
        if (status.ok()) continue;
        CHECK(status.code() == absl::StatusCode::kInvalidArgument);
        CHECK_THAT(std::string(Message(status)),
                   Catch::StartsWith("tensor 'w'") && Catch::Contains("multiple of"));
      }
    }
  }
}

TEST_CASE("pieces in a bucket are read at their offsets", "[handover]") {
  const RankLayout layout = SmallLayout();  // slice 2 is 70,001 F32: a full block and one of 4,465
  const HostRegion bucket = PatternRegion(600'000);
  const auto source = BucketSource::Create(
      layout, bucket.bytes(),
      {{.slice = RankSlice(2), .first_block = 0, .block_count = 2, .offset_bytes = 100},
       {.slice = RankSlice(0), .first_block = 1, .block_count = 1, .offset_bytes = 400'000}});
  REQUIRE(source.ok());
  CHECK(source->Blocks().size() == 3);
  std::vector<std::byte> tail(4'465 * 4);
  source->Read({.slice = RankSlice(2), .block = 1}, tail);
  CHECK(std::memcmp(tail.data(), bucket.bytes().data() + 100 + 65'536 * 4, tail.size()) == 0);
  std::vector<std::byte> other((100'100 - 65'536) * 2);
  source->Read({.slice = RankSlice(0), .block = 1}, other);
  CHECK(std::memcmp(other.data(), bucket.bytes().data() + 400'000, other.size()) == 0);
}

TEST_CASE("repeated pieces and pieces outside their slice or bucket are refused", "[handover]") {
  const RankLayout layout = SmallLayout();
  const HostRegion bucket = PatternRegion(300'000);
  const auto refused = [&](std::vector<BucketPiece> pieces) {
    return BucketSource::Create(layout, bucket.bytes(), std::move(pieces)).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  CHECK(refused({{.slice = RankSlice(3), .block_count = 1}}));
  CHECK(refused({{.slice = RankSlice(2), .first_block = 1, .block_count = 2}}));
  CHECK(refused({{.slice = RankSlice(2), .first_block = 3, .block_count = 0xFFFFFFFE}}));
  CHECK(refused({{.slice = RankSlice(2), .block_count = 1, .offset_bytes = 300'000 - 262'143}}));
  CHECK(refused({{.slice = RankSlice(2), .block_count = 1, .offset_bytes = ~uint64_t{0}}}));
  CHECK(refused({{.slice = RankSlice(2), .block_count = 2},
                 {.slice = RankSlice(2), .first_block = 1, .block_count = 1}}));
  CHECK_FALSE(
      refused({{.slice = RankSlice(2), .block_count = 1, .offset_bytes = 300'000 - 262'144}}));
}

}  // namespace
}  // namespace dws
