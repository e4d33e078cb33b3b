// Gathers from real senders' serving parts, by each way.
#include "sender_daemon/on_demand/gather/gather.h"

#include <catch2/catch.hpp>
#include <thread>

#include "common/transport/fabric/fabric_api.h"
#include "tests/sender_daemon/on_demand/owners.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

ShardedModel Model(uint64_t seed, uint32_t ranks) {
  std::mt19937_64 random(seed);
  return ShardedModel::Random(random, ranks);
}

// One tensor of `rows` rows of 1024 BF16, shared by rows.
ShardedModel RowsOf(uint32_t ranks, uint64_t rows) {
  TensorSpec spec{.name = "w", .dtype = DType::kBF16, .shape = {rows, 1024}};
  std::vector<uint64_t> at;
  for (uint32_t r = 1; r < ranks; ++r) at.push_back(rows * r / ranks);
  if (!at.empty()) spec.cuts = {{0, at}};
  ShardedModel model{.tensors = {spec}, .layouts = {}};
  for (uint32_t r = 0; r < ranks; ++r) {
    CellBox cells;
    if (!at.empty()) cells = {{r, 1}};
    model.layouts.push_back(MakeLayout({{.tensor = spec, .cells = cells}}));
  }
  return model;
}

bool HasFabric() {
  const auto installed = FabricApi::Load();
  if (!installed.ok()) WARN("without fabric: " << Message(installed.status()));
  return installed.ok();
}

std::string EachWay() {
  const std::string way = GENERATE("same-host", "fabric", "grpc");
  return way == "fabric" && !HasFabric() ? "grpc" : way;
}

uint64_t BytesBy(const Gather& gather, std::string_view way, Content content = Content::kFull) {
  for (const SourceChain::Total& total : gather.totals()) {
    if (total.source == way && total.content == content) return total.bytes;
  }
  return 0;
}

}  // namespace

TEST_CASE("every byte of a unit equals its owner's, by each way, whatever the shards",
          "[on_demand]") {
  const auto seed = GENERATE(take(8, random(0U, ~0U)));
  INFO("seed " << seed);
  const std::string way = EachWay();
  INFO(way);
  Owners owners(Model(seed, 1 + seed % 8), seed);
  const auto gather = owners.Open(owners.Options(way));
  uint64_t bytes = 0;
  for (uint64_t version = 1; version <= 2; ++version) {
    owners.Publish(version);
    for (uint32_t unit = 0; unit <= owners.model().tensors.size(); ++unit) {
      const Status status = owners.Run(*gather, unit, version);
      INFO(ToString(status));
      REQUIRE(status.ok());
      const auto plan = gather->Plan(UnitIndex(unit), kTrainStream, owners.In({}));
      for (const UnitPlan::Part& part : (*plan)->parts()) bytes += part.size_bytes;
    }
  }
  CHECK(BytesBy(*gather, way) == bytes);
  for (const std::string other : {"same-host", "fabric", "grpc"}) {
    if (other != way) CHECK(BytesBy(*gather, other) == 0);
  }
  CHECK(gather->waits().empty());
}

TEST_CASE("a way that does not work is passed over, and the reason is told", "[on_demand]") {
  Owners owners(RowsOf(2, 200), 1);
  owners.Publish(1);
  Owners::Opening options = owners.Options();
  SECTION("another host, without a fabric") {
    options.links.host_id = "another host";
    options.gather.fabric = {};
    const auto gather = owners.Open(std::move(options));
    REQUIRE(owners.Run(*gather, 0, 1).ok());
    CHECK(gather->last(TrainerRank(1)).source == "grpc");
    CHECK_THAT(gather->last(TrainerRank(1)).reason,
               Contains("same-host: this sender is on another host"));
  }
  SECTION("another host, with one") {
    if (!HasFabric()) return;
    options.links.host_id = "another host";
    const auto gather = owners.Open(std::move(options));
    REQUIRE(owners.Run(*gather, 0, 1).ok());
    CHECK(gather->last(TrainerRank(1)).source == "fabric");
    CHECK(gather->last(TrainerRank(1)).detail == "tcp");
  }
  SECTION("a required way that does not work is an error that names the owner") {
    owners.owner(1).CloseHandleSocket();
    options.gather.only = "same-host";
    const auto gather = owners.Open(std::move(options));
    const Status status = owners.Run(*gather, 0, 1);
    CHECK_THAT(ToString(status),
               Contains("unit 'all' at version 1: trainer rank 1 at 127.0.0.1:") &&
                   Contains("may come by same-host only") &&
                   Contains("handle socket cannot be reached"));
  }
}

TEST_CASE("a gather waits for the owners that it needs, and for no other", "[on_demand]") {
  // Rank 0 has "a", rank 1 has "b".
  const Shard a{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {1000}}};
  const Shard b{.tensor = {.name = "b", .dtype = DType::kF32, .shape = {1000}}};
  Owners owners({.tensors = {a.tensor, b.tensor}, .layouts = {MakeLayout({a}), MakeLayout({b})}},
                1);
  owners.Publish(1);
  const auto gather = owners.Open(owners.Options());
  owners.Draw(2);
  owners.PublishOf(0, 2);
  CHECK(owners.Run(*gather, 1, 2).ok());  // "a" alone
  const Status late = owners.Run(*gather, 0, 2, std::chrono::milliseconds(50));
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK_THAT(ToString(late), Contains("unit 'all' at version 2: trainer rank 1 at 127.0.0.1:") &&
                                 Contains("it has not published version 2"));

  std::thread other([&] {
    const bool waits = Eventually([&] { return gather->waits().size() == 1; });
    CHECK(waits);
    if (waits) {
      CHECK(gather->waits()[0].unit == "unit 'all'");
      CHECK_THAT(gather->waits()[0].owner, Contains("trainer rank 1"));
    }
    owners.PublishOf(1, 2);
  });
  const Status status = owners.Run(*gather, 0, 2);
  other.join();
  CHECK(status.ok());
  CHECK(gather->waits().empty());
}

TEST_CASE("a gather that waits ends when it is cancelled, or the gather is stopped",
          "[on_demand]") {
  Owners owners(RowsOf(2, 100), 1);
  owners.Publish(1);
  const auto gather = owners.Open(owners.Options());
  REQUIRE(owners.Run(*gather, 0, 1).ok());
  const bool stops = GENERATE(false, true);
  Cancellation cancellation;
  std::thread other([&] {
    CHECK(Eventually([&] { return !gather->waits().empty(); }));
    if (stops) return gather->Stop();
    cancellation.Cancel();
  });
  Gather::Wanted wanted = owners.In(std::chrono::seconds(60));
  wanted.cancellation = &cancellation;
  std::vector<std::byte> bytes(100 * 2048);
  const Status status = gather->Run({.unit = UnitIndex(0), .at = Owners::At(2)}, bytes, wanted);
  other.join();
  CHECK(absl::IsCancelled(status));
  CHECK_THAT(ToString(status), Contains("unit 'all' at version 2: trainer rank 0"));
}

TEST_CASE("what an owner publishes while it is read is never mixed in", "[on_demand]") {
  const std::string way = EachWay();
  INFO(way);
  Owners owners(RowsOf(2, 3000), 1);
  owners.Publish(1);
  const auto gather = owners.Open(owners.Options(way));
  constexpr uint64_t kVersions = 40;
  for (uint64_t version = 2; version <= kVersions; ++version) owners.Draw(version);
  std::atomic<uint64_t> newest{1};
  std::thread trainer([&] {
    for (uint64_t version = 2; version <= kVersions; ++version) {
      for (uint32_t r = 0; r < 2; ++r) owners.PublishOf(r, version);
      newest = version;
    }
  });
  uint64_t good = 0;
  for (uint64_t version = 0; version < kVersions;) {
    version = newest;
    const Status status = owners.Run(*gather, 0, version);  // checks every byte of a success
    good += status.ok() ? 1 : 0;
    if (status.ok()) continue;
    INFO(ToString(status));
    CHECK((absl::IsAborted(status) || absl::IsUnavailable(status)));
    CHECK_THAT(ToString(status), Contains("trainer rank "));
  }
  trainer.join();
  CHECK(owners.Run(*gather, 0, kVersions).ok());
  CHECK(good > 0);
}

TEST_CASE("a block that has moved on is turned back by the owner's delta", "[on_demand]") {
  const std::string way = EachWay();
  INFO(way);
  Owners owners(RowsOf(2, 600), 1);
  owners.Publish(1);
  const auto gather = owners.Open(owners.Options(way));
  owners.Draw(2);
  owners.PublishOf(1, 2);
  CHECK(owners.Run(*gather, 0, 1).ok());
  // Over gRPC the owner does it.
  CHECK((BytesBy(*gather, "grpc", Content::kDelta) > 0) == (way != "grpc"));
}

TEST_CASE("a version that an owner no longer has is an error at once", "[on_demand]") {
  Owners owners(RowsOf(2, 50), 1);
  for (uint64_t version = 1; version <= 12; ++version) owners.Publish(version);
  const auto gather = owners.Open(owners.Options());
  const Status status = owners.Run(*gather, 0, 2);
  CHECK(absl::IsAborted(status));
  CHECK_THAT(ToString(status), Contains("version 2 is no longer retained, the oldest one is 5"));
}

TEST_CASE("an owner that dies is named", "[on_demand]") {
  Owners owners(RowsOf(3, 6000), 1);
  owners.Publish(1);
  SECTION("before it has published") {
    const auto gather = owners.Open(owners.Options());
    REQUIRE(owners.Run(*gather, 0, 1).ok());
    owners.owner(2).Kill();
    owners.Draw(2);
    for (uint32_t r = 0; r < 2; ++r) owners.PublishOf(r, 2);
    const Status status = owners.Run(*gather, 0, 2, std::chrono::milliseconds(500));
    CHECK(absl::IsDeadlineExceeded(status));
    CHECK_THAT(ToString(status), Contains("trainer rank 2 at 127.0.0.1:"));
    REQUIRE(Eventually([&] {
      const Status again = owners.Run(*gather, 0, 2, std::chrono::milliseconds(1));
      return ToString(again).find("trainer rank 2") != std::string::npos &&
             ToString(again).find("it is gone: ") != std::string::npos;
    }));
  }
  SECTION("while it is read over its connection") {
    const auto gather = owners.Open(owners.Options("grpc"));
    REQUIRE(owners.Run(*gather, 0, 1).ok());
    // its 4 MiB take longer than the test may.
    Owner::Options slow{.rank = 2, .world = 3, .egress_bytes_per_second = 1024};
    owners.Replace(2, slow);
    owners.PublishOf(2, 1);
    std::thread killer([&] {
      CHECK(Eventually([&] { return owners.owner(2).full_transfers() > 0; }));
      owners.owner(2).Kill();
    });
    const auto again = owners.Open(owners.Options("grpc"));
    const Status status = owners.Run(*again, 0, 1);
    killer.join();
    CHECK(absl::IsUnavailable(status));
    CHECK_THAT(ToString(status), Contains("unit 'all' at version 1: trainer rank 2 at 127.0.0.1:"));
  }
}

TEST_CASE("damage in an owner's memory is found by each way, and the owner is named",
          "[on_demand]") {
  const std::string way = EachWay();
  INFO(way);
  Owners owners(RowsOf(2, 300), 1);
  owners.Publish(1);
  auto& memory = const_cast<SnapshotMemory&>(owners.owner(1).state()->snapshot->memory());
  memory.content()[1000] ^= std::byte{1};
  const auto gather = owners.Open(owners.Options(way));
  const Status status = owners.Run(*gather, 0, 1);
  CHECK_FALSE(status.ok());
  CHECK_THAT(ToString(status), Contains("trainer rank 1 at 127.0.0.1:") &&
                                   (Contains("slices are not as published") ||
                                    Contains("of tensor 'w' is not as published")));
}

TEST_CASE("an owner of another job, rank, world or incarnation is refused by name", "[on_demand]") {
  Owners owners(RowsOf(2, 50), 1);
  owners.Publish(1);
  Owners::Opening options = owners.Options();
  std::string why;
  std::unique_ptr<Owner> other;
  const auto instead = [&](const Owner::Options& of) {
    other = std::make_unique<Owner>(of, owners.model().layouts[1]);
    options.links.addresses[1] = other->address();
  };
  SECTION("another job") {
    options.links.job_id = "another";
    why = "this sender serves job 'job', the other belongs to 'another'";
  }
  SECTION("another rank") {
    instead({.rank = 3, .world = 2});
    why = "this sender is of trainer rank 3, expected 1";
  }
  SECTION("another world") {
    instead({.rank = 1, .world = 5});
    why = "its trainer has 5 ranks, this one 2";
  }
  SECTION("a later incarnation") {
    instead({.rank = 1, .world = 2});
    other->Register(owners.model().layouts[1], {.incarnation = 9, .id_hi = 1, .id_lo = 1},
                    RankEpoch(2));
    why = "it is in incarnation 9 of the trainer, this rank in 1";
  }
  const auto gather = owners.Open(std::move(options));
  const Status status = owners.Run(*gather, 0, 1);
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(ToString(status),
             Contains("unit 'all'") && Contains("trainer rank ") && Contains(why));
}

TEST_CASE("owners whose tensors do not fit together are refused by name", "[on_demand]") {
  ShardedModel model = RowsOf(2, 100);
  TensorSpec other = model.tensors[0];
  other.dtype = DType::kF16;
  model.layouts[1] = MakeLayout({{.tensor = other, .cells = {{1, 1}}}});
  Owners owners(std::move(model), 1);
  const auto gather = owners.Open(owners.Options());
  const auto plan = gather->Plan(UnitIndex(0), kTrainStream, owners.In(std::chrono::seconds(20)));
  CHECK(absl::IsInvalidArgument(plan.status()));
  CHECK_THAT(ToString(plan.status()), Contains("tensor 'w' is BF16 [100, 1024] of trainer rank 0"));
}

TEST_CASE("an owner that has refined its layout is read by the finer one", "[on_demand]") {
  Owners owners(RowsOf(2, 400), 1);
  owners.Publish(1);
  const auto gather = owners.Open(owners.Options());
  REQUIRE(owners.Run(*gather, 0, 1).ok());
  const auto before = gather->Plan(UnitIndex(0), kTrainStream, owners.In(std::chrono::seconds(20)));
  TensorSpec finer = owners.model().tensors[0];
  finer.cuts[0].at.push_back(300);
  const RankLayout layout = MakeLayout({{.tensor = finer, .cells = {{1, 2}}}});
  owners.owner(1).Register(layout, kTrainStream, RankEpoch(2));
  const Weights whole = owners.SharesOf(1, 1);
  const auto middle = whole[0].begin() + 100 * 2048;
  owners.owner(1).Publish(1, {{whole[0].begin(), middle}, {middle, whole[0].end()}});
  REQUIRE(Eventually([&] {
    const auto now = gather->Plan(UnitIndex(0), kTrainStream, owners.In(std::chrono::seconds(20)));
    return now.ok() && *now != *before;
  }));
  CHECK(owners.Run(*gather, 0, 1).ok());
}

TEST_CASE("a gather refuses options and buffers that cannot be right", "[on_demand]") {
  Owners owners(RowsOf(2, 50), 1);
  owners.Publish(1);
  const auto refusal = [&](const std::function<void(Owners::Opening&)>& change) {
    Owners::Opening options = owners.Options();
    change(options);
    const auto gather = owners.TryOpen(std::move(options));
    CHECK(absl::IsInvalidArgument(gather.status()));
    return ToString(gather.status());
  };
  CHECK_THAT(refusal([](auto& options) { options.links.addresses.clear(); }), Contains("0 owners"));
  CHECK_THAT(refusal([](auto& options) { options.links.addresses.resize(257, "h:1"); }),
             Contains("at most 256"));
  CHECK_THAT(refusal([](auto& options) { options.links.addresses[1] = "nowhere"; }),
             Contains("'nowhere'"));
  CHECK_THAT(refusal([](auto& options) { options.links.self = TrainerRank(2); }),
             Contains("trainer rank 2"));
  CHECK_THAT(
      refusal([](auto& options) { options.gather.units.push_back(options.gather.units[0]); }),
      Contains("two units have the name 'all'"));
  CHECK_THAT(refusal([](auto& options) { options.gather.only = "pigeon"; }), Contains("'pigeon'"));
  const auto gather = owners.Open(owners.Options());
  std::vector<std::byte> small(50 * 2048 - 1);
  const Status status = gather->Run({.unit = UnitIndex(0), .at = Owners::At(1)}, small,
                                    owners.In(std::chrono::seconds(20)));
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(ToString(status), Contains("unit 'all' has 102400 bytes, the buffer for it 102399"));
}

}  // namespace dws
