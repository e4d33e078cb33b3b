#include "sender_daemon/on_demand/gather/unit_arena.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/sender_daemon/on_demand/owners.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// Units of one tensor each: 8 of 1000 BF16, and a larger one of 5001 bytes.
struct Case {
  Case() { owners.Publish(1); }

  static ShardedModel Model() {
    ShardedModel model;
    std::vector<std::vector<Shard>> shards(2);
    for (uint32_t t = 0; t < 9; ++t) {
      TensorSpec spec{.name = fmt::format("t{}", t), .dtype = DType::kBF16, .shape = {1000}};
      if (t == 4) spec = {.name = "t4", .dtype = DType::kU8, .shape = {5001}};
      spec.cuts = {{0, {300}}};
      model.tensors.push_back(spec);
      for (uint32_t r = 0; r < 2; ++r) shards[r].push_back({.tensor = spec, .cells = {{r, 1}}});
    }
    for (auto& owned : shards) model.layouts.push_back(MakeLayout(std::move(owned)));
    return model;
  }
  Owners::Opening Options() {
    Owners::Opening options = owners.Options("grpc");
    options.gather.units.erase(options.gather.units.begin());  // "all"
    return options;
  }
  std::unique_ptr<Gather> OpenGather() { return owners.Open(Options()); }
  // `bytes`: of the memory.
  Result<std::unique_ptr<UnitArena>> Open(size_t prefetch, uint64_t bytes) {
    DWS_ASSIGN_OR_RETURN(CreatedRegion made, CreateHostRegion("arena", bytes));
    memory = std::move(made.fd);
    return UnitArena::Create(std::move(made.region), prefetch, *gather, owners.clock(),
                             kTrainStream, In());
  }
  Gather::Wanted In(std::chrono::milliseconds time = std::chrono::seconds(20)) const {
    return owners.In(time);
  }
  static UnitAt Unit(uint32_t unit, uint64_t version = 1) {
    return {.unit = UnitIndex(unit), .at = Owners::At(version)};
  }
  uint64_t bytes() const {
    for (const SourceChain::Total& total : gather->totals()) {
      if (total.source == "grpc" && total.content == Content::kFull) return total.bytes;
    }
    return 0;
  }

  Owners owners{Model(), 1};
  std::unique_ptr<Gather> gather = OpenGather();
  UniqueFd memory;  // of the last arena
};

// What a rank asks of its sender, with an arena of one slot.
struct Rank {
  explicit Rank(Case& with) : with_(with) {
    auto made = CreateHostRegion("arena", 5056);
    REQUIRE(made.ok());
    auto opened = with.owners.OpenRank(with.Options(), std::move(made->region));
    REQUIRE(opened.ok());
    gathers = *std::move(opened);
  }
  v1::GatherRequest Request(uint64_t lease, uint32_t unit, std::vector<uint64_t> released = {}) {
    v1::GatherRequest request;
    request.set_lease(lease);
    request.set_unit(unit);
    request.set_version(1);
    for (const uint64_t each : released) request.add_released(each);
    return request;
  }
  struct Call {
    v1::GatherRequest request;
    v1::GatherReply reply;
    std::promise<Status> ended;
  };
  // `call` lasts until it has ended.
  std::future<Status> Start(Call& call, std::chrono::milliseconds time = std::chrono::seconds(20)) {
    gathers->Take(call.request, with_.In(time).deadline, given_up, call.reply,
                  [&call](const Status& status) { call.ended.set_value(status); });
    return call.ended.get_future();
  }
  Status Take(const v1::GatherRequest& request,
              std::chrono::milliseconds time = std::chrono::seconds(20)) {
    Call call{.request = request, .reply = {}, .ended = {}};
    Status status = Start(call, time).get();
    size_bytes = call.reply.size_bytes();
    return status;
  }

  Case& with_;
  Cancellation given_up;
  uint64_t size_bytes = 0;  // of the last
  std::unique_ptr<RankGathers> gathers;
};

constexpr uint64_t kLargest = 5056;  // 5001 bytes in whole lines of 64

}  // namespace

TEST_CASE("an arena has at most 2 + prefetch slots, and as many as its memory has room for",
          "[arena]") {
  Case with;
  for (const size_t prefetch : {0U, 1U, 3U}) {
    const auto arena = with.Open(prefetch, 10 * kLargest);
    REQUIRE(arena.ok());
    CHECK((*arena)->slots() == 2 + prefetch);
  }
  CHECK((*with.Open(1, 3 * kLargest))->slots() == 3);
  CHECK((*with.Open(1, 3 * kLargest - 1))->slots() == 2);
  CHECK((*with.Open(1, kLargest))->slots() == 1);
  const auto small = with.Open(1, kLargest - 1);
  CHECK(absl::IsInvalidArgument(small.status()));
  CHECK_THAT(ToString(small.status()),
             Contains("has 5055 bytes, and unit 'only t4' alone needs 5056: 15168 are enough"));
  CHECK_THAT(ToString(with.Open(65, kLargest).status()), Contains("at most 64"));
}

TEST_CASE("a rank finds its units in the memory that it has given", "[arena]") {
  Case with;
  const auto arena = with.Open(1, 3 * kLargest);
  REQUIRE(arena.ok());
  const auto mapped = HostRegion::Map(std::move(with.memory), 3 * kLargest, Access::kReadOnly);
  REQUIRE(mapped.ok());
  for (const uint32_t unit : {4U, 0U, 8U}) {
    const auto lease = (*arena)->Take(Case::Unit(unit), with.In());
    REQUIRE(lease.ok());
    with.owners.CheckBytes(*with.gather, Case::Unit(unit),
                           mapped->bytes().subspan(lease->offset(), lease->bytes().size()));
  }
}

TEST_CASE("what does not fit waits until a unit is released", "[arena]") {
  Case with;
  const auto arena = with.Open(0, kLargest);
  REQUIRE(arena.ok());
  std::optional<UnitArena::Lease> first;
  {
    auto lease = (*arena)->Take(Case::Unit(0), with.In());
    REQUIRE(lease.ok());
    first.emplace(*std::move(lease));
  }
  const auto late = (*arena)->Take(Case::Unit(1), with.In(std::chrono::milliseconds(20)));
  CHECK(absl::IsDeadlineExceeded(late.status()));
  CHECK_THAT(ToString(late.status()), Contains("unit 'only t1': it is still being fetched ahead, "
                                               "or all 1 slots of the arena are in use"));
  std::atomic<bool> released{false};
  std::thread rank([&] {
    released = true;
    first.reset();
  });
  const auto lease = (*arena)->Take(Case::Unit(1), with.In());
  rank.join();
  REQUIRE(lease.ok());
  CHECK(released);
  with.owners.CheckBytes(*with.gather, Case::Unit(1), lease->bytes());
}

TEST_CASE("from the second microbatch on units are there before they are asked for", "[arena]") {
  Case with;
  const auto arena = with.Open(2, 4 * kLargest);
  REQUIRE(arena.ok());
  const auto take = [&](uint32_t unit, uint64_t version) {
    const auto lease = (*arena)->Take(Case::Unit(unit, version), with.In());
    REQUIRE(lease.ok());
    with.owners.CheckBytes(*with.gather, Case::Unit(unit, version), lease->bytes());
  };
  (*arena)->BeginMicrobatch();
  for (uint32_t unit = 0; unit < 8; ++unit) take(unit, 1);
  with.owners.Publish(2);
  (*arena)->BeginMicrobatch();
  const uint64_t before = with.bytes();
  take(0, 2);
  // Units 1 and 2 come by themselves.
  REQUIRE(Eventually([&] { return with.bytes() == before + 3 * 2000; }));
  for (uint32_t unit = 1; unit < 8; ++unit) take(unit, 2);
  CHECK(with.bytes() <= before + 7 * 2000 + 5001);
}

TEST_CASE("a unit that cannot be gathered is an error, and its slot is free again", "[arena]") {
  Case with;
  const auto arena = with.Open(0, kLargest);
  REQUIRE(arena.ok());
  const auto missing = (*arena)->Take(Case::Unit(0, 7), with.In(std::chrono::milliseconds(20)));
  CHECK_THAT(ToString(missing.status()), Contains("it has not published version 7"));
  const auto lease = (*arena)->Take(Case::Unit(0), with.In());
  REQUIRE(lease.ok());
  with.owners.CheckBytes(*with.gather, Case::Unit(0), lease->bytes());
}

TEST_CASE("ranks' threads that take units side by side each find the right bytes", "[arena]") {
  const auto seed = GENERATE(take(3, random(0U, ~0U)));
  INFO("seed " << seed);
  Case with;
  with.owners.Publish(2);
  const auto arena = with.Open(1, 3 * kLargest);
  REQUIRE(arena.ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(seed + thread);
      std::vector<std::byte> copy;
      for (int i = 0; i < 40; ++i) {
        const UnitAt unit = Case::Unit(static_cast<uint32_t>(random() % 9), 1 + random() % 2);
        const auto lease = (*arena)->Take(unit, with.In());
        if (!lease.ok() || !with.owners.HasBytes(*with.gather, unit, lease->bytes())) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a rank that asks for a lease again gets it, and not another slot", "[arena]") {
  Case with;
  Rank rank(with);
  REQUIRE(rank.Take(rank.Request(1, 0)).ok());
  CHECK(rank.size_bytes == 2048);
  REQUIRE(rank.Take(rank.Request(1, 0)).ok());  // the only slot is in use
  CHECK(rank.size_bytes == 2048);
  CHECK_THAT(ToString(rank.Take(rank.Request(1, 2))),
             Contains("lease 1 is of unit 0 at version 1, and unit 2 at 1 is wanted"));
  CHECK_THAT(ToString(rank.Take(rank.Request(0, 0))), Contains("a gather without a lease"));
  const auto wait = std::chrono::milliseconds(20);
  CHECK(absl::IsDeadlineExceeded(rank.Take(rank.Request(2, 1), wait)));
  CHECK(rank.Take(rank.Request(2, 1, {1})).ok());
  CHECK(rank.Take(rank.Request(3, 2, {1, 2})).ok());  // 1 once more
}

TEST_CASE("a lease that is released while its gather waits keeps no slot", "[arena]") {
  Case with;
  Rank rank(with);
  REQUIRE(rank.Take(rank.Request(1, 0)).ok());
  Rank::Call first{.request = rank.Request(2, 1), .reply = {}, .ended = {}};
  Rank::Call again{.request = rank.Request(2, 1), .reply = {}, .ended = {}};
  auto waiting = rank.Start(first);
  auto once_more = rank.Start(again);
  REQUIRE(rank.Take(rank.Request(3, 2, {2, 1})).ok());
  CHECK(absl::IsCancelled(waiting.get()));
  CHECK(absl::IsCancelled(once_more.get()));
  REQUIRE(rank.Take(rank.Request(4, 3, {3})).ok());
}

}  // namespace dws
