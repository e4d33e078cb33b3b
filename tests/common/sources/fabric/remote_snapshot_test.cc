// A snapshot that is read while it changes: over libfabric's tcp, and, step by step, over a remote
// memory that does as a case says.
#include "common/sources/fabric/remote_snapshot.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/sources/fabric/lent_memory.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/fabric/fabric_host.h"
#include "tests/common/sources/published_snapshot.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// Remote memory in this process. Pieces arrive one by one, in the order in which they were begun.
class StepByStep final : public RemoteMemory {
 public:
  explicit StepByStep(const SnapshotMemory& memory) : memory_(memory) {}

  // Called when a piece has arrived, before the reader is told. `bytes`: not stamps.
  std::function<void(bool bytes)> arrived = [](bool) {};
  // Returns whether a piece is moved, and not only reported as moved.
  std::function<bool(bool bytes)> moves = [](bool) { return true; };
  Status status;

  const std::string& name() const override { return name_; }
  size_t pieces_max() const override { return 3; }
  Status Start(const Piece& piece) override {
    CHECK(std::none_of(begun_.begin(), begun_.end(),
                       [&](const Piece& other) { return other.tag == piece.tag; }));
    REQUIRE(begun_.size() < pieces_max());
    REQUIRE(piece.offset + piece.to.size() <= memory_.all().size());
    begun_.push_back(piece);
    return status;
  }
  Result<uint64_t> Wait() override {
    if (!status.ok()) return status;
    REQUIRE_FALSE(begun_.empty());
    const Piece piece = begun_.front();
    begun_.pop_front();
    const bool bytes = piece.offset < memory_.places().stamps_offset();
    const ByteSpan from = memory_.all().subspan(piece.offset, piece.to.size());
    if (moves(bytes)) std::copy(from.begin(), from.end(), piece.to.begin());
    arrived(bytes);
    return piece.tag;
  }

 private:
  const SnapshotMemory& memory_;
  const std::string name_ = "fake (nic0)";
  std::deque<Piece> begun_;
};

Status ReadAll(Published& sender, StepByStep& remote, FullAssembly& assembly) {
  RemoteBuffers buffers(assembly, remote.pieces_max());
  return ReadRemoteSnapshot(
      remote, sender.memory->places(), kWanted, [] { return OkStatus(); }, buffers, assembly);
}

TEST_CASE("blocks that have not changed are read, in memory and on disk", "[fabric]") {
  Published sender;
  const bool in_memory = GENERATE(true, false);
  const auto assembly = sender.Assembly(in_memory);
  StepByStep remote(*sender.memory);
  SECTION("all") {
    REQUIRE(ReadAll(sender, remote, *assembly).ok());
    CHECK(assembly->missing_blocks() == 0);
  }
  SECTION("all but those that had changed before, or are changing") {
    for (const uint32_t block : {0, 7, 8, 9, 20, 39}) sender.Change(block, 8);
    sender.Stamp(30) = (uint64_t{1} << 63) | 7;
    REQUIRE(ReadAll(sender, remote, *assembly).ok());
    CHECK(assembly->Missing() == std::vector<BlockRange>{{RankSlice(0), 0, 1},
                                                         {RankSlice(0), 7, 3},
                                                         {RankSlice(0), 20, 1},
                                                         {RankSlice(0), 30, 1},
                                                         {RankSlice(0), 39, 1}});
    // Those that had changed are kept as they are, where there is room.
    const std::vector<NewerBlock> newer = assembly->TakeNewer();
    CHECK(newer.size() == (in_memory ? 6 : 2));
    for (const NewerBlock& block : newer) {
      CHECK(block.at == WeightVersion(8));
      CHECK(std::ranges::equal(block.bytes, sender.Now(block.block)));
    }
  }
  SECTION("none, when all are changing") {
    for (BlockStamp& stamp : sender.memory->stamps()) stamp = (uint64_t{1} << 63) | 8;
    size_t bytes = 0;
    remote.arrived = [&](bool are_bytes) { bytes += are_bytes ? 1 : 0; };
    REQUIRE(ReadAll(sender, remote, *assembly).ok());
    CHECK(bytes == 0);
    CHECK(assembly->TakeNewer().empty());
    CHECK(assembly->missing_blocks() == sender.layout.block_count());
  }
  sender.CheckRight(*assembly);
}

TEST_CASE("a block that changes between any two steps is left out", "[fabric]") {
  Published sender;
  const auto assembly = sender.Assembly();
  StepByStep remote(*sender.memory);
  // Each arrival changes one more block: often of a piece that is under way.
  uint32_t next = 0;
  remote.arrived = [&](bool) {
    if (next < kBlocks) sender.Change(next++, 8);
  };
  REQUIRE(ReadAll(sender, remote, *assembly).ok());
  CHECK(assembly->missing_blocks() > 0);
  CHECK(assembly->missing_blocks() < sender.layout.block_count());
  for (const NewerBlock& block : assembly->TakeNewer()) {
    CHECK(block.at == WeightVersion(8));
    CHECK(std::ranges::equal(block.bytes, sender.Now(block.block)));
  }
  sender.CheckRight(*assembly);
}

TEST_CASE("a provider that reports success and moves nothing is found out", "[fabric]") {
  Published sender;
  const auto assembly = sender.Assembly();
  StepByStep remote(*sender.memory);
  SECTION("by the stamps") {
    remote.moves = [](bool) { return false; };
    const Status lie = ReadAll(sender, remote, *assembly);
    REQUIRE(absl::IsDataLoss(lie));
    CHECK_THAT(std::string(Message(lie)),
               Contains("fake (nic0) says that it has read, and has moved nothing"));
    CHECK(assembly->missing_blocks() == sender.layout.block_count());
  }
  SECTION("by the digests, if it moves stamps") {
    remote.moves = [](bool bytes) { return !bytes; };
    REQUIRE(ReadAll(sender, remote, *assembly).ok());
    CHECK(assembly->DropWrong() ==
          std::vector<RankSlice>{RankSlice(0), RankSlice(1), RankSlice(2)});
  }
}

TEST_CASE("an error of the provider, or of what goes on, ends the transfer", "[fabric]") {
  Published sender;
  const auto assembly = sender.Assembly();
  StepByStep remote(*sender.memory);
  int arrivals = 0;
  remote.arrived = [&](bool) {
    if (++arrivals == 9) remote.status = UnavailableError("the cable");
  };
  CHECK(ReadAll(sender, remote, *assembly) == UnavailableError("the cable"));
  CHECK(assembly->missing_blocks() < sender.layout.block_count());
  sender.CheckRight(*assembly);
}

// LentMemory with a sender that answers as a case says.
struct Way {
  Published sender;
  RealClock clock;
  std::unique_ptr<FullAssembly> assembly = sender.Assembly();
  RemoteLoan loan{.region = {.provider = FabricProvider::kVerbs,
                             .address = std::vector<std::byte>(16),
                             .size = sender.memory->places().size_bytes(),
                             .key = 1},
                  .lease = std::chrono::hours(1)};
  size_t asked = 0;
  uint64_t key_step = 0;  // added to the key by each question
  std::string name;

  Status Read(FabricChoice choice) {
    LentMemory way(
        choice,
        [this](const RemoteRegion&,
               const FabricReader::Options& options) -> Result<std::unique_ptr<RemoteMemory>> {
          CHECK(options.local.size() == 2);
          CHECK(options.local[0].data() == assembly->memory().data());
          return std::make_unique<StepByStep>(*sender.memory);
        },
        clock);
    return way.Read(
        [this]() -> Result<RemoteLoan> {
          RemoteLoan answer = loan;
          answer.region.key += asked++ * key_step;
          return answer;
        },
        kWanted, *assembly, name);
  }
};

TEST_CASE("a receiver reads what a sender lends, by a provider that it wants", "[fabric]") {
  Way way;
  SECTION("any") {
    REQUIRE(way.Read({.on = true}).ok());
    CHECK(way.assembly->missing_blocks() == 0);
    CHECK(way.name == "verbs");
    CHECK(way.asked == 1);
    return;
  }
  Status refused;
  SECTION("none") {
    refused = way.Read({});
    CHECK(way.asked == 0);
  }
  SECTION("another one") { refused = way.Read({.on = true, .only = FabricProvider::kTcp}); }
  SECTION("never shm") {
    way.loan.region.provider = FabricProvider::kShm;
    refused = way.Read({.on = true});
  }
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(Message(refused)), Contains("--fabric is"));
}

TEST_CASE("a lease is renewed while it is used, and a loan of something else ends it", "[fabric]") {
  Way way;
  way.loan.lease = Duration::zero();
  SECTION("the same") {
    REQUIRE(way.Read({.on = true}).ok());
    CHECK(way.asked > 10);
    CHECK(way.assembly->missing_blocks() == 0);
  }
  SECTION("another key") {
    way.key_step = 1;
    const Status ended = way.Read({.on = true});
    REQUIRE(absl::IsUnavailable(ended));
    CHECK_THAT(std::string(Message(ended)), Contains("another snapshot"));
  }
  SECTION("another size") {
    ++way.loan.region.size;
    CHECK(absl::IsDataLoss(way.Read({.on = true})));
    CHECK(way.asked == 1);
  }
}

TEST_CASE("a trainer changes weights while they are read over tcp", "[fabric]") {
#if defined(__SANITIZE_THREAD__)
  return;  // reads that race are what this is about
#endif
  if (const auto api = FabricApi::Load(); !api.ok()) {
    WARN("skipped: " << Message(api.status()));
    return;
  }
  RealClock clock;
  FabricHost host({.choice = {.on = true, .only = FabricProvider::kTcp}, .source = "127.0.0.1"},
                  clock);
  LentMemory way({.on = true}, {}, clock);
  const bool in_memory = GENERATE(true, false);
  size_t read = 0;
  for (int round = 0; round < 10; ++round) {
    Published sender;
    std::atomic<bool> stop{false};
    // One pass over all blocks, slower in later rounds.
    std::thread trainer([&] {
      for (uint32_t block = 0; block < kBlocks && !stop; ++block) {
        sender.Change((block * 7 + 3) % kBlocks, 8);
        for (int i = 0; i < round * 4; ++i) std::this_thread::yield();
      }
    });
    const auto assembly = sender.Assembly(in_memory);
    std::string name;
    const Status status = way.Read(
        [&] {
          return host.Lend(
              {.id = sender.memory->id(), .bytes = sender.memory->all(), .keeper = sender.memory});
        },
        kWanted, *assembly, name);
    stop = true;
    trainer.join();
    INFO(ToString(status));
    REQUIRE(status.ok());
    CHECK(name == "tcp");
    read += sender.layout.block_count() - assembly->missing_blocks();
    sender.CheckRight(*assembly);
    host.EndOthers(0);
  }
  CHECK(read > 0);
}

}  // namespace
}  // namespace dws
