// A mapped snapshot that is read while the trainer changes it.
#include "common/sources/same_host/snapshot_reader.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "common/base/check.h"
#include "tests/common/sources/published_snapshot.h"

namespace dws {
namespace {

// Maps the snapshot like a receiver.
std::unique_ptr<const SnapshotMemory> Mapped(const Published& sender) {
  auto descriptor = sender.memory->ReadOnlyDescriptor();
  REQUIRE(descriptor.ok());
  auto mapped = SnapshotMemory::Map(*std::move(descriptor), sender.layout);
  REQUIRE(mapped.ok());
  return *std::move(mapped);
}

TEST_CASE("blocks that are as of the version are copied, in memory and on disk", "[same_host]") {
  Published sender;
  const auto mapped = Mapped(sender);
  const bool in_memory = GENERATE(true, false);
  const auto assembly = sender.Assembly(in_memory);
  ThreadPool pool(1);
  SECTION("all") {
    REQUIRE(ReadSnapshot(*mapped, kWanted, *assembly, pool).ok());
    CHECK(assembly->missing_blocks() == 0);
  }
  SECTION("all but those that had changed before, or are changing") {
    for (const uint32_t block : {0, 7, 8, 20, 39}) sender.Change(block, 8);
    const StampedChange change(sender.Stamp(30), WeightVersion(7));
    REQUIRE(ReadSnapshot(*mapped, kWanted, *assembly, pool).ok());
    CHECK(assembly->Missing() == std::vector<BlockRange>{{RankSlice(0), 0, 1},
                                                         {RankSlice(0), 7, 2},
                                                         {RankSlice(0), 20, 1},
                                                         {RankSlice(0), 30, 1},
                                                         {RankSlice(0), 39, 1}});
    // Those that had changed are kept as they are, while there is room: threads that find it at the
    // same time each keep one.
    const std::vector<NewerBlock> newer = assembly->TakeNewer();
    CHECK(newer.size() >= (in_memory ? 5 : 2));
    CHECK(newer.size() < (in_memory ? 6 : 2 + pool.worker_count()));
    for (const NewerBlock& block : newer) {
      CHECK(block.at == WeightVersion(8));
      CHECK(std::ranges::equal(block.bytes, sender.Now(block.block)));
    }
  }
  SECTION("only those that are missing") {
    for (const BlockRange& range :
         {BlockRange{RankSlice(0), 4, 6}, BlockRange{RankSlice(1), 0, 1}}) {
      REQUIRE(assembly->Take(range, sender.Then(range)).ok());
    }
    // They would come wrong now.
    sender.memory->content()[sender.Offset({RankSlice(0), 5, 1})] ^= std::byte{1};
    REQUIRE(ReadSnapshot(*mapped, kWanted, *assembly, pool).ok());
    CHECK(assembly->missing_blocks() == 0);
  }
  sender.CheckRight(*assembly);
}

// Live memory, by slice; checks that only what is as published gets there.
class Live final : public DirectTarget {
 public:
  explicit Live(const Published& sender) : sender_(sender), content_(sender.content.size()) {}
  Status Write(TrainerRank, const BlockRange& blocks, ByteSpan bytes) override {
    DWS_CHECK(std::ranges::equal(bytes, sender_.Then(blocks)));
    std::ranges::copy(bytes, content_.begin() + static_cast<ptrdiff_t>(sender_.Offset(blocks)));
    return OkStatus();
  }
  bool Has(const BlockRange& block) const {
    return std::ranges::equal(
        ByteSpan(content_).subspan(sender_.Offset(block), SizeBytes(sender_.layout, block)),
        sender_.Then(block));
  }

 private:
  const Published& sender_;
  std::vector<std::byte> content_;
};

TEST_CASE("live memory gets nothing that has changed, or is changing", "[same_host]") {
  Published sender;
  Live live(sender);
  FullWant want = sender.Want();
  want.direct = &live;
  const auto assembly = *FullAssembly::Create(want, {});
  CHECK(assembly->memory().empty());
  ThreadPool pool(1);
  for (const uint32_t block : {0, 7, 8, 39}) sender.Change(block, 8);
  const StampedChange change(sender.Stamp(30), WeightVersion(7));
  REQUIRE(ReadSnapshot(*Mapped(sender), kWanted, *assembly, pool).ok());
  // The blocks of one piece come by themselves.
  CHECK(assembly->Missing() == std::vector<BlockRange>{{RankSlice(0), 0, 1},
                                                       {RankSlice(0), 7, 2},
                                                       {RankSlice(0), 30, 1},
                                                       {RankSlice(0), 39, 1}});
  sender.CheckRight(*assembly);
  for (const RankSlice slice : sender.slices) {
    for (uint32_t b = 0; b < sender.layout.slice(slice).blocks; ++b) {
      CHECK(live.Has({.slice = slice, .first_block = b, .block_count = 1}));
    }
  }
  const FetchedFull full = assembly->Finish();
  CHECK(full.direct_bytes == sender.layout.size_bytes());
  CHECK(full.spool.memory_bytes() == 0);
}

TEST_CASE("a version that nobody could have published is not read", "[same_host]") {
  Published sender;
  const auto assembly = sender.Assembly();
  ThreadPool pool(0);
  REQUIRE(ReadSnapshot(*Mapped(sender), WeightVersion(~uint64_t{0}), *assembly, pool).ok());
  CHECK(assembly->missing_blocks() == sender.layout.block_count());
}

TEST_CASE("bytes that are not as published are found by their digest", "[same_host]") {
  Published sender;
  const auto assembly = sender.Assembly();
  ThreadPool pool(1);
  sender.memory->content()[sender.Offset({RankSlice(2), 1, 1})] ^= std::byte{1};
  REQUIRE(ReadSnapshot(*Mapped(sender), kWanted, *assembly, pool).ok());
  CHECK(assembly->DropWrong() == std::vector<RankSlice>{RankSlice(2)});
}

TEST_CASE("a block that changes while it is copied is left out", "[same_host]") {
#if defined(__SANITIZE_THREAD__)
  return;  // reads that race are what this is about
#endif
  size_t read = 0;
  size_t left_out = 0;
  // Either may be done before the other begins, so more often than both need to meet.
  for (int round = 0; round < 20 || (round < 2000 && (read == 0 || left_out == 0)); ++round) {
    Published sender;
    const auto mapped = Mapped(sender);
    const auto assembly = sender.Assembly();
    std::atomic<bool> reads{false};
    // Against the reader: they meet in the middle of some block.
    std::thread trainer([&] {
      while (!reads) continue;
      for (uint32_t block = kBlocks; block > 0; --block) sender.Change(block - 1, 8);
    });
    ThreadPool pool(0);
    reads = true;
    const Status status = ReadSnapshot(*mapped, kWanted, *assembly, pool);
    trainer.join();
    REQUIRE(status.ok());
    left_out += assembly->missing_blocks();
    read += sender.layout.block_count() - assembly->missing_blocks();
    sender.CheckRight(*assembly);
  }
  CHECK(read > 0);
  CHECK(left_out > 0);
}

}  // namespace
}  // namespace dws
