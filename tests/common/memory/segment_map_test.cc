#include "common/memory/segment_map.h"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "common/model/tensor_spec.h"

namespace dws {
namespace {

std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The definition, element by element: element e of a slice is element e % run of run e / run.
uint64_t ElementOffset(const StridedRuns& runs, uint32_t width, uint64_t element) {
  return (element / runs.run_elements * runs.stride_elements + element % runs.run_elements) * width;
}

StridedRuns RandomRuns(std::mt19937_64& random) {
  StridedRuns runs;
  runs.run_elements = 1 + random() % 40;
  runs.run_count = 1 + random() % 60;
  runs.stride_elements = runs.run_elements + random() % 20;
  return runs;
}

uint64_t ExtentBytes(const StridedRuns& runs, uint32_t width) {
  return ((runs.run_count - 1) * runs.stride_elements + runs.run_elements) * width;
}

TEST_CASE("gathering and writing and staging follow the definition on random layouts", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint32_t width = 1u << (random() % 4);
    const StridedRuns runs = RandomRuns(random);
    const uint64_t offset = random() % 50;
    std::vector<std::byte> region = RandomBytes(offset + ExtentBytes(runs, width), random);
    const Result<SegmentMap> map = SegmentMap::Create(region, offset, runs, width);
    REQUIRE(map.ok());
    const uint64_t elements = runs.run_elements * runs.run_count;
    REQUIRE(map->element_count() == elements);

    const uint64_t first = random() % elements;
    const uint64_t count = 1 + random() % (elements - first);
    std::vector<std::byte> block(count * width);
    map->Gather(first, block);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = offset + ElementOffset(runs, width, first + i);
      REQUIRE(std::memcmp(block.data() + i * width, region.data() + at, width) == 0);
      REQUIRE(map->Address(first + i) == region.data() + at);
    }

    // Stages some positions, stages all, or writes at once.
    const std::vector<std::byte> new_block = RandomBytes(count * width, random);
    std::vector<uint16_t> positions;
    const int way = round % 3;
    for (uint64_t i = 0; i < count; ++i) {
      if (way != 0 || random() % 4 == 0) positions.push_back(static_cast<uint16_t>(i));
    }
    std::vector<std::byte> expected = region;
    for (const uint16_t position : positions) {
      std::memcpy(expected.data() + offset + ElementOffset(runs, width, first + position),
                  new_block.data() + position * width, width);
    }
    StagedWrites staged;
    if (way == 0) map->StageElements(first, positions, new_block, staged);
    if (way == 1) map->StageAll(first, new_block, staged);
    if (way == 2) map->Write(first, new_block);
    staged.Scatter();
    REQUIRE(region == expected);
  }
}

TEST_CASE("word offsets are those of their elements and each word is contiguous", "[memory]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int found = 0;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    const uint32_t width = 1u << (random() % 4);
    const uint64_t lanes = 8 / width;
    StridedRuns runs = RandomRuns(random);
    if (round % 2 == 0) runs.run_elements *= lanes;
    if (round % 5 == 0) runs.run_elements += 70'000 / lanes * lanes;
    if (round % 7 == 0) runs.run_elements = 1;
    runs.stride_elements = runs.run_elements + random() % 100;
    std::vector<std::byte> region(ExtentBytes(runs, width));
    const Result<SegmentMap> map = SegmentMap::Create(region, 0, runs, width);
    REQUIRE(map.ok());
    const uint64_t elements = map->element_count();
    const uint64_t first = random() % elements / lanes * lanes;
    const uint64_t count = std::min<uint64_t>(elements - first, 1 + random() % 65'536);
    std::vector<uint16_t> positions;
    for (uint64_t i = 0; i < count; ++i) {
      if (random() % 50 == 0 || i + 1 == count) positions.push_back(static_cast<uint16_t>(i));
    }
    std::vector<uint32_t> offsets(positions.size());
    const bool in_one_piece = !map->Contiguous(first, count).empty();
    if (!map->WordOffsets(first, count, positions, offsets.data())) {
      // The last position is in a tail, or words may lie in two runs.
      CHECK((count % lanes != 0 || (!in_one_piece && runs.run_elements % lanes != 0)));
      ++refused;
      continue;
    }
    ++found;
    for (size_t i = 0; i < positions.size(); ++i) {
      REQUIRE(map->Address(first) + offsets[i] == map->Address(first + positions[i]));
      const uint64_t word = first + positions[i] / lanes * lanes;
      for (uint64_t lane = 0; lane < lanes; ++lane) {
        REQUIRE(word + lane < first + count);
        REQUIRE(map->Address(word + lane) == map->Address(word) + lane * width);
      }
    }
  }
  CHECK(found > 50);
  CHECK(refused > 50);
}

TEST_CASE("contiguous elements are returned as a span of the region", "[memory]") {
  const StridedRuns runs{.run_elements = 10, .run_count = 3, .stride_elements = 16};
  std::vector<std::byte> region(2 * 42);
  const Result<SegmentMap> map = SegmentMap::Create(region, 0, runs, 2);
  REQUIRE(map.ok());
  CHECK(map->Contiguous(10, 10).data() == region.data() + 32);
  CHECK(map->Contiguous(10, 10).size() == 20);
  CHECK(map->Contiguous(9, 2).empty());
  CHECK(map->Contiguous(29, 1).size() == 2);
  CHECK(map->Contiguous(30, 0).empty());
}

TEST_CASE("a row shard in a fused projection is mapped without its neighbours", "[memory]") {
  // Columns 2..4 of a [4, 6] array of 2-byte elements.
  const Result<StridedRuns> runs = CoalesceRuns({4, 2}, {6, 1});
  REQUIRE(runs.ok());
  std::vector<std::byte> region(4 * 6 * 2);
  const Result<SegmentMap> map = SegmentMap::Create(region, 2 * 2, *runs, 2);
  REQUIRE(map.ok());
  map->Write(0, AsBytes("aabbccddeeffgghh"));
  for (char& c : std::span(reinterpret_cast<char*>(region.data()), region.size())) {
    if (c == 0) c = '.';
  }
  CHECK(AsText(region) == "....aabb........ccdd........eeff........gghh....");
}

TEST_CASE("a segment that reaches beyond its region is refused", "[memory]") {
  std::vector<std::byte> region(100);
  const StridedRuns runs = {.run_elements = 10, .run_count = 2, .stride_elements = 15};
  CHECK(SegmentMap::Create(region, 0, runs, 4).ok());
  for (const auto& refused :
       {SegmentMap::Create(region, 1, runs, 4), SegmentMap::Create(region, 101, runs, 1),
        SegmentMap::Create(region, 0, runs, 8), SegmentMap::Create(region, UINT64_MAX, runs, 1)}) {
    CHECK(absl::IsInvalidArgument(refused.status()));
  }
  // Products that overflow 64 bits, and 128 with the element's width.
  const StridedRuns huge = {
      .run_elements = 1, .run_count = UINT64_MAX, .stride_elements = UINT64_MAX};
  CHECK(absl::IsInvalidArgument(ConstSegmentMap::Create(region, 0, huge, 8).status()));
  const StridedRuns wrapped = {
      .run_elements = uint64_t{1} << 61, .run_count = 1, .stride_elements = 0};
  CHECK(absl::IsInvalidArgument(ConstSegmentMap::Create(region, 0, wrapped, 8).status()));
}

TEST_CASE("overlapping elements and unknown widths are refused", "[memory]") {
  std::vector<std::byte> region(100);
  const StridedRuns overlapping = {.run_elements = 4, .run_count = 3, .stride_elements = 3};
  CHECK(absl::IsInvalidArgument(SegmentMap::Create(region, 0, overlapping, 1).status()));
  const StridedRuns broadcast = {.run_elements = 1, .run_count = 5, .stride_elements = 0};
  CHECK(absl::IsInvalidArgument(SegmentMap::Create(region, 0, broadcast, 1).status()));
  const StridedRuns plain = {.run_elements = 4, .run_count = 1, .stride_elements = 0};
  CHECK(SegmentMap::Create(region, 0, plain, 1).ok());
  CHECK(absl::IsInvalidArgument(SegmentMap::Create(region, 0, plain, 3).status()));
}

TEST_CASE("an empty slice can be mapped", "[memory]") {
  const Result<SegmentMap> map = SegmentMap::Create({}, 0, StridedRuns(), 2);
  REQUIRE(map.ok());
  CHECK(map->element_count() == 0);
  map->Gather(0, {});
  map->Write(0, {});
}

TEST_CASE("one block may spread over more than 4 GiB", "[memory]") {
  // Reserved address space, of which only the touched pages exist.
  constexpr uint64_t kStride = uint64_t{3} << 30;
  constexpr uint64_t kSize = 3 * kStride + 4096;
  void* const data = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(data != MAP_FAILED);
  const MutableByteSpan region(static_cast<std::byte*>(data), kSize);
  const StridedRuns runs = {.run_elements = 1, .run_count = 4, .stride_elements = kStride};
  const Result<SegmentMap> map = SegmentMap::Create(region, 0, runs, 1);
  REQUIRE(map.ok());
  StagedWrites staged;
  const std::vector<uint16_t> positions = {0, 1, 2, 3};
  map->StageElements(0, positions, AsBytes("wxyz"), staged);
  CHECK(staged.run_count() == 2);  // 0 and 3 GiB, 6 and 9 GiB
  staged.Scatter();
  for (uint64_t i = 0; i < 4; ++i) CHECK(region[i * kStride] == AsBytes("wxyz")[i]);
  ::munmap(data, kSize);
}

}  // namespace
}  // namespace dws
