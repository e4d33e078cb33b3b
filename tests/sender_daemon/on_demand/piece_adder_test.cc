// Without gRPC, so that ThreadSanitizer sees all of its threads.
#include "sender_daemon/on_demand/minibatch/piece_adder.h"

#include <fcntl.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "sender_daemon/on_demand/gather/limits.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

constexpr uint64_t kElements = 70'000;  // of each unit: two blocks
constexpr uint32_t kUnits = 2;

CreatedRegion Make(std::string_view name, uint64_t bytes) {
  auto made = CreateHostRegion(name, bytes);
  REQUIRE(made.ok());
  return *std::move(made);
}

// The memory of a rank, exact sums.
std::shared_ptr<RankMemory> MemoryOf() {
  JoinOrder order{.session = 1, .prefetch = 1, .exact = true};
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    const std::string name = fmt::format("u{}", unit);
    order.units.push_back({.name = name, .tensors = {}});
    order.shards.push_back({.name = name, .elements = kElements});
  }
  CreatedRegion arena = Make("arena", 4096);
  CreatedRegion gradients = Make("gradients", limits::kRecordPageBytes + kUnits * kElements * 8);
  OutboxHandles outbox;
  REQUIRE(OutboxWriter::Create({.slot_count = 2, .data_bytes = 4096}, outbox).ok());
  order.arena_bytes = arena.region.size_bytes();
  order.gradients_bytes = gradients.region.size_bytes();
  order.outbox_bytes = outbox.size_bytes;
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(arena.fd));
  descriptors.push_back(std::move(gradients.fd));
  descriptors.push_back(std::move(outbox.region));
  descriptors.push_back(std::move(outbox.wake));
  auto memory = RankMemory::Map(order, 1, std::move(descriptors));
  REQUIRE(memory.ok());
  return *memory;
}

std::shared_ptr<Accumulators> SumsOf(const std::shared_ptr<RankMemory>& memory) {
  return {memory, &memory->sums()};
}

LentPiece PieceOf(float value) {
  const auto bytes = std::make_shared<std::vector<float>>(kElements, value);
  return {.dtype = DType::kF32,
          .bytes = {reinterpret_cast<const std::byte*>(bytes->data()), kElements * sizeof(float)},
          .keeper = bytes};
}

}  // namespace

TEST_CASE("pieces that several threads bring are added one after the other, then sealed",
          "[on_demand]") {
  constexpr int kBringers = 4;
  constexpr int kPieces = 6;  // of each, of each unit
  ThreadPool pool(2);
  PieceAdder adder(pool);
  const std::shared_ptr<RankMemory> memory = MemoryOf();
  for (int minibatch = 1; minibatch <= 3; ++minibatch) {
    int added = 0;  // written by the adder's thread alone
    std::atomic<int> wrong = 0;
    std::vector<std::thread> bringers;
    for (int bringer = 0; bringer < kBringers; ++bringer) {
      bringers.emplace_back([&] {
        for (uint32_t unit = 0; unit < kUnits * kPieces; ++unit) {
          adder.Add(SumsOf(memory), UnitIndex(unit % kUnits),
                    PieceOf(static_cast<float>(minibatch)), [&](const Status& status) {
                      if (!status.ok()) ++wrong;
                      ++added;
                    });
        }
      });
    }
    for (std::thread& bringer : bringers) bringer.join();
    std::atomic<bool> sealed = false;
    GradientSum sum;
    int added_before = 0;
    adder.Seal(SumsOf(memory), [&](const Result<GradientSum>& found) {
      if (!found.ok()) ++wrong;
      if (found.ok()) sum = *found;
      added_before = added;
      sealed = true;
    });
    REQUIRE(Eventually([&] { return sealed.load(); }));
    CHECK(wrong == 0);
    CHECK(added_before == kBringers * kPieces * static_cast<int>(kUnits));
    const double each = kBringers * kPieces * minibatch;
    CHECK(sum.of_squares == each * each * kElements * kUnits);
    CHECK(sum.exact);
    float first = 0;
    std::memcpy(&first, memory->gradients().data(), sizeof(first));
    CHECK(first == each);
    adder.LetGo(SumsOf(memory));
  }
}

TEST_CASE("an adder that stops drops what it has not begun", "[on_demand]") {
  ThreadPool pool(1);
  const std::shared_ptr<RankMemory> memory = MemoryOf();
  std::atomic<int> done = 0;
  {
    PieceAdder adder(pool);
    for (int i = 0; i < 50; ++i) {
      adder.Add(SumsOf(memory), UnitIndex(0), PieceOf(1), [&](const Status&) { ++done; });
    }
    adder.Stop();
    const int at_stop = done;
    adder.Add(SumsOf(memory), UnitIndex(0), PieceOf(1), [&](const Status&) { ++done; });
    CHECK(done == at_stop);
  }
  CHECK(done <= 50);
}

}  // namespace dws
