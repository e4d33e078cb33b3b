// Memory of an engine that others read: exactly one version, and nobody reads while it is written.
#include "receiver_daemon/weights/served_weights.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/receiver_daemon/staging_case.h"

namespace dws {
namespace {

VersionAt At(uint64_t version) {
  return {.stream = {.incarnation = 1}, .version = WeightVersion(version)};
}

}  // namespace

TEST_CASE("blocks are read as the engine has them", "[served_weights]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts(), 1, 1, AnyMemory());
  engine.Load(trainer, 1);
  ServedWeights served;
  served.Offer(engine.weights, At(1));
  for (uint32_t r = 0; r < 2; ++r) {
    const TrainerRank rank(r);
    const RankLayout& layout = engine.weights->layouts().rank(rank);
    const auto found = served.Find(At(1), rank, layout.signature());
    REQUIRE(found.ok());
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const SliceBytes& wanted = trainer.At(1, r)[s];
      CHECK(served.Holds(found->number, rank, RankSlice(s)));
      for (uint32_t block = 0; block < layout.slice(RankSlice(s)).blocks; ++block) {
        const BlockRange range{.slice = RankSlice(s), .first_block = block, .block_count = 1};
        std::vector<std::byte> bytes(SizeBytes(layout, range));
        REQUIRE(served.Read(found->number, rank, range, bytes).ok());
        CHECK(std::equal(bytes.begin(), bytes.end(), wanted.begin() + FirstByte(layout, range)));
      }
    }
  }
}

TEST_CASE("only the version that is offered is found, in its own layout", "[served_weights]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts());
  const Digest layout = engine.weights->layouts().rank(TrainerRank(0)).signature();
  ServedWeights served;
  CHECK(absl::IsAborted(served.Find(At(1), TrainerRank(0), layout).status()));
  served.Offer(engine.weights, At(1));
  CHECK(served.Find(At(1), TrainerRank(0), layout).ok());
  CHECK(absl::IsAborted(served.Find(At(2), TrainerRank(0), layout).status()));
  CHECK(absl::IsAborted(served.Find(At(1), TrainerRank(1), layout).status()));
  CHECK(absl::IsAborted(served.Find(At(1), TrainerRank(2), layout).status()));
  VersionAt other = At(1);
  other.stream.incarnation = 2;
  CHECK(absl::IsAborted(served.Find(other, TrainerRank(0), layout).status()));
}

TEST_CASE("what was found ends with the offer, and with it the memory is released",
          "[served_weights]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts());
  const TrainerRank rank(0);
  const RankLayout& layout = engine.weights->layouts().rank(rank);
  const BlockRange range{.slice = RankSlice(0), .block_count = 1};
  std::vector<std::byte> bytes(SizeBytes(layout, range));
  ServedWeights served;
  const auto users = engine.weights.use_count();
  served.Offer(engine.weights, At(1));
  const auto found = served.Find(At(1), rank, layout.signature());
  REQUIRE(found.ok());
  served.Offer(engine.weights, At(1));  // again: nothing changes
  CHECK(served.Read(found->number, rank, range, bytes).ok());
  served.Withdraw();
  CHECK(engine.weights.use_count() == users);
  CHECK(absl::IsAborted(served.Read(found->number, rank, range, bytes)));
  CHECK_FALSE(served.Holds(found->number, rank, RankSlice(0)));
  // The same number of a later version is another offer.
  served.Offer(engine.weights, At(1));
  CHECK(absl::IsAborted(served.Read(found->number, rank, range, bytes)));
  served.Withdraw();
}

TEST_CASE("memory is read while its digests are taken", "[served_weights]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts(), 1, 1, AnyMemory());
  engine.Load(trainer, 1);
  const TrainerRank rank(0);
  const RankLayout& layout = engine.weights->layouts().rank(rank);
  ThreadPool pool(1);
  const auto states = [&] { return engine.weights->ComputeStates(rank, pool).value(); };
  const auto wanted = states();
  ServedWeights served;
  served.Offer(engine.weights, At(1));
  const uint64_t number = served.Find(At(1), rank, layout.signature())->number;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0};
  const auto read = [&] {
    for (uint32_t s = 0; !done; s = (s + 1) % layout.slice_count()) {
      const BlockRange range{.slice = RankSlice(s), .block_count = 1};
      std::vector<std::byte> bytes(SizeBytes(layout, range));
      const SliceBytes& published = trainer.At(1, 0)[s];
      const bool right = served.Read(number, rank, range, bytes).ok() &&
                         std::equal(bytes.begin(), bytes.end(), published.begin());
      if (!right) ++wrong;
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back(read);
  for (int i = 0; i < 100; ++i) {
    if (states() != wanted) ++wrong;
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  served.Withdraw();
  CHECK(wrong == 0);
}

TEST_CASE("nobody reads memory while it is written", "[served_weights]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts());
  const TrainerRank rank(0);
  const RankLayout& layout = engine.weights->layouts().rank(rank);
  const uint64_t size = layout.slice(RankSlice(0)).size_bytes();
  ServedWeights served;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> torn{0};
  const auto read = [&] {
    const BlockRange range{.slice = RankSlice(0), .block_count = 2};
    std::vector<std::byte> bytes(SizeBytes(layout, range));
    for (uint64_t version = 1; !done; ++version) {
      const auto found = served.Find(At(version % 2 + 1), rank, layout.signature());
      if (!found.ok() || !served.Read(found->number, rank, range, bytes).ok()) continue;
      ++reads;
      const std::byte wanted{static_cast<uint8_t>(version % 2 + 1)};
      if (std::ranges::any_of(bytes, [&](std::byte byte) { return byte != wanted; })) ++torn;
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read);
  for (uint64_t version = 1; version <= 200 || reads < 20; ++version) {
    served.Withdraw();
    const std::byte content{static_cast<uint8_t>(version % 2 + 1)};
    engine.Write(0, 0, SliceBytes(size, content));
    served.Offer(engine.weights, At(version % 2 + 1));
    std::this_thread::yield();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  served.Withdraw();
  CHECK(torn == 0);
}

}  // namespace dws
