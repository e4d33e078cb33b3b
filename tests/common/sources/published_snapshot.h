// A sender's snapshot that a test changes while a receiver reads it.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <vector>

#include "common/model/block_range.h"
#include "common/model/digest/digest.h"
#include "common/spool/full_assembly.h"
#include "common/transport/same_host/snapshot_memory.h"

namespace dws {

inline constexpr WeightVersion kWanted(7);
inline constexpr uint32_t kBlocks = 40;  // of the first slice: several pieces

inline RankLayout TestLayout() {
  auto layout = RankLayout::Create(
      {Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {(kBlocks - 1) * 65'536 + 99}}),
       Shard::Whole({.name = "b", .dtype = DType::kF32, .shape = {7}}),
       Shard::Whole({.name = "c", .dtype = DType::kU8, .shape = {200'000}}),
       Shard::Whole({.name = "d", .dtype = DType::kBF16, .shape = {0}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

// A sender's snapshot at kWanted, and what it was then.
struct Published {
  RankLayout layout = TestLayout();
  std::shared_ptr<SnapshotMemory> memory = *SnapshotMemory::Create(layout);
  std::vector<std::byte> content;
  std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1), RankSlice(2), RankSlice(3)};
  std::vector<Digest> digests;

  Published() {
    std::mt19937_64 random(Catch::rngSeed());
    for (std::byte& byte : memory->content()) byte = static_cast<std::byte>(random());
    content.assign(memory->content().begin(), memory->content().end());
    for (const RankSlice slice : slices) {
      const BlockRange whole{.slice = slice, .block_count = layout.slice(slice).blocks};
      digests.push_back(DigestBytes(Then(whole), layout.slice(slice).first_word));
    }
    for (BlockStamp& stamp : memory->stamps()) stamp = random() % (kWanted.value() + 1);
  }
  FullWant Want() const { return {.layout = layout, .slices = slices, .expected = digests}; }
  size_t Offset(const BlockRange& range) const {
    return memory->places().slice_offset(range.slice) + FirstByte(layout, range);
  }
  ByteSpan Then(const BlockRange& range) const {
    return ByteSpan(content).subspan(Offset(range), SizeBytes(layout, range));
  }
  ByteSpan Now(const BlockRange& range) const {
    return memory->content().subspan(Offset(range), SizeBytes(layout, range));
  }
  BlockStamp& Stamp(uint32_t block) { return memory->stamps()[block]; }  // of the first slice
  // The trainer changes a block of the first slice.
  void Change(uint32_t block, uint64_t version) {
    const StampedChange change(Stamp(block), WeightVersion(version));
    const BlockRange range{.slice = RankSlice(0), .first_block = block, .block_count = 1};
    for (std::byte& byte : memory->content().subspan(Offset(range), SizeBytes(layout, range))) {
      byte ^= std::byte{255};
    }
  }
  std::unique_ptr<FullAssembly> Assembly(bool in_memory = true) const {
    auto made = FullAssembly::Create(Want(), {.folder = "/tmp",
                                              .memory_bytes_max = in_memory ? uint64_t{1} << 30 : 0,
                                              .size_bytes_max = uint64_t{1} << 30});
    REQUIRE(made.ok());
    return *std::move(made);
  }
  // All slices that are not missing are as published.
  void CheckRight(FullAssembly& assembly) const {
    for (const BlockRange& range : assembly.Missing()) {
      REQUIRE(assembly.Take(range, Then(range)).ok());
    }
    CHECK(assembly.DropWrong().empty());
    CHECK(assembly.missing_blocks() == 0);
  }
};

}  // namespace dws
