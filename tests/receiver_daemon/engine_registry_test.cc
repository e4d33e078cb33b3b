// Which ranks form an engine. Memory and leases are real; the test is the client.
#include "receiver_daemon/engine/engine_registry.h"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/receiver_daemon/fake_engine.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {
namespace {

LayoutSetPtr LayoutOf(const std::vector<std::string>& names) {
  std::vector<Shard> shards;
  for (const std::string& name : names) {
    shards.push_back({.tensor = {.name = name, .dtype = DType::kU8, .shape = {64}, .cuts = {}}});
  }
  auto set = LayoutSet::Create({MakeRankLayout(std::move(shards))});
  REQUIRE(set.ok());
  return *set;
}

// Attaches one engine rank of two, which holds the tensors `held`, up to its open lease. `told`
// records the commands it is sent, as letters: p(ause), r(esume), e(nd).
Status Attach(EngineRegistry& registry, uint32_t engine_rank, const LayoutSetPtr& layouts,
              const std::set<std::string>& held, const std::vector<std::string>& excluded = {},
              std::string* told = nullptr) {
  uint64_t bytes = 0;
  std::vector<EngineView> views;
  for (EngineView& view : WholeViews(*layouts, 0, bytes)) {
    if (held.contains(view.tensor)) views.push_back(std::move(view));
  }
  const std::vector<uint64_t> region_bytes = {bytes};
  DWS_ASSIGN_OR_RETURN(EngineMapping mapping, MapEngine(*layouts, views, region_bytes, excluded));
  DWS_ASSIGN_OR_RETURN(const Generation generation,
                       registry.Reserve({.engine_rank = engine_rank,
                                         .engine_world_size = 2,
                                         .has_hook = false,
                                         .client = "test",
                                         .regions = {{.size_bytes = bytes}},
                                         .views = views,
                                         .mapping = std::move(mapping),
                                         .layouts = layouts}));
  DWS_ASSIGN_OR_RETURN(CreatedRegion created, CreateHostRegion("rank", bytes));
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(created.fd));
  DWS_RETURN_IF_ERROR(registry.OnDescriptors(generation, std::move(descriptors), UniqueFd()));
  DWS_ASSIGN_OR_RETURN(const auto lease, registry.FindLease(engine_rank, generation));
  const auto note = [told](char letter) {
    if (told != nullptr) told->push_back(letter);
  };
  return lease->Open({.send =
                          [note](const LeaseCommand& command) {
                            note(std::holds_alternative<PauseCommand>(command) ? 'p' : 'r');
                          },
                      .end = [note](const Status&) { note('e'); }});
}

TEST_CASE("ranks that attached under different layouts never form one engine", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr before = LayoutOf({"a", "b", "d"});
  const LayoutSetPtr now = LayoutOf({"a", "b", "c", "d"});
  REQUIRE(Attach(registry, 1, before, {"d"}).ok());
  REQUIRE(Attach(registry, 0, now, {"a", "b", "c"}).ok());
  // Slice 2 is d in one layout and c in the other.
  CHECK_FALSE(registry.Engine().has_value());

  // Rank 1 is mapped again: its memory is the same, the number of its slice is not.
  const Generation generation = registry.Ranks()[1].generation;
  CHECK(registry.Follow(now).empty());
  const auto engine = registry.Engine();
  REQUIRE(engine.has_value());
  REQUIRE(engine->memory.size() == 2);
  CHECK(engine->memory[1]->generation == generation);
  CHECK(engine->memory[1]->mapping.slices[0].slice.slice == RankSlice(3));
}

TEST_CASE("a rank whose tensor is gone ends, with the reason", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  std::string told;
  REQUIRE(Attach(registry, 1, LayoutOf({"a", "d"}), {"d"}, {}, &told).ok());
  CHECK(registry.Follow(LayoutOf({"a", "b"})).empty());
  CHECK(registry.Ranks().empty());
  CHECK(told == "e");
}

TEST_CASE("a rank that only lacks cuts stays, and says which", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr coarse = LayoutOf({"a", "b"});
  const CutWishes halves = {{"a", {{.dim = 0, .at = {32}}}}};
  const LayoutSetPtr fine = *coarse->Refined(halves);
  for (const uint32_t rank : {0, 1}) {
    std::vector<EngineView> views = {{.engine_name = "half",
                                      .tensor = "a",
                                      .dtype = DType::kU8,
                                      .ranges = {{.dim = 0, .range = {32 * rank, 32 * rank + 32}}},
                                      .shape = {32},
                                      .strides = {1}}};
    CHECK(MissingCuts(*fine, views).empty());
    CHECK(MissingCuts(*coarse, views) == halves);
    REQUIRE(registry
                .Reserve({.engine_rank = rank,
                          .engine_world_size = 2,
                          .client = "test",
                          .regions = {{.size_bytes = 64}},
                          .views = views,
                          .mapping = *MapEngine(*fine, views, std::vector<uint64_t>{64}, {"b"}),
                          .layouts = fine})
                .ok());
  }
  CHECK(registry.Follow(coarse) == halves);
  CHECK(registry.Ranks().size() == 2);
  // Then the senders have cut again, and finer than before.
  CHECK(registry.Follow(*coarse->Refined({{"a", {{.dim = 0, .at = {16, 32}}}}})).empty());
  CHECK(registry.Ranks().size() == 2);
}

TEST_CASE("the last rank is refused with the name of a tensor that no rank holds", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr layouts = LayoutOf({"a", "b"});
  REQUIRE(Attach(registry, 0, layouts, {"a"}).ok());
  const Status refused = Attach(registry, 1, layouts, {"a"});
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(Message(refused)).find("'b'") != std::string::npos);
}

TEST_CASE("a registration without memory blocks no other and the first with memory gets the rank",
          "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr layouts = LayoutOf({"a", "b"});
  const auto reserve = [&](uint32_t rank, uint32_t world_size) {
    uint64_t bytes = 0;
    const std::vector<EngineView> views = WholeViews(*layouts, 0, bytes);
    return registry.Reserve({.engine_rank = rank,
                             .engine_world_size = world_size,
                             .has_hook = false,
                             .client = "unfinished",
                             .regions = {{.size_bytes = bytes}},
                             .views = views,
                             .mapping = *MapEngine(*layouts, views, std::vector{bytes}, {}),
                             .layouts = layouts});
  };
  const auto hand_over = [&](Generation generation) -> Status {
    DWS_ASSIGN_OR_RETURN(CreatedRegion created, CreateHostRegion("rank", 128));
    std::vector<UniqueFd> descriptors;
    descriptors.push_back(std::move(created.fd));
    return registry.OnDescriptors(generation, std::move(descriptors), UniqueFd());
  };
  // Other world sizes, other ranks, the same rank: none of them blocks another.
  REQUIRE(reserve(3, 4).ok());
  const auto first = reserve(0, 1);
  const auto second = reserve(0, 1);
  REQUIRE((first.ok() && second.ok()));
  CHECK(registry.Missing() == "engine rank 0 has not handed its memory over");
  REQUIRE(hand_over(*first).ok());
  CHECK(absl::IsAlreadyExists(hand_over(*second)));
  CHECK(absl::IsAlreadyExists(reserve(0, 1).status()));
  CHECK(absl::IsInvalidArgument(reserve(1, 2).status()));
  REQUIRE((*registry.FindLease(0, *first))
              ->Open({.send = [](const LeaseCommand&) {}, .end = [](const Status&) {}})
              .ok());
  REQUIRE(registry.Engine().has_value());
  CHECK(registry.Engine()->generation == *first);
  // Ending a registration without memory changes nothing.
  registry.End(*second, CancelledError("test"));
  CHECK(registry.Engine().has_value());
  registry.End(*first, CancelledError("test"));
  CHECK_FALSE(registry.Engine().has_value());
  CHECK(reserve(0, 1).ok());
}

TEST_CASE("the share of a receiver is what its ranks hold together", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed, Coverage::kShare);
  const LayoutSetPtr layouts = LayoutOf({"a", "b", "c"});
  REQUIRE(Attach(registry, 0, layouts, {"a"}, {"b", "c"}).ok());
  REQUIRE(Attach(registry, 1, layouts, {"b"}, {"a", "c"}).ok());
  const auto engine = registry.Engine();
  REQUIRE(engine.has_value());
  const auto weights = EngineWeights::Create(layouts, engine->memory, Coverage::kShare);
  REQUIRE(weights.ok());
  const EngineShare share = (*weights)->Share();
  CHECK(share.held == std::vector<bool>{true, true, false});
  CHECK(share.excluded ==
        std::vector<bool>{false, false,
                          true});  // excluded by both; each holds what only the other excludes
  CHECK(layouts->slice_count() == 3);
  CHECK_THAT(layouts->SliceName(2), Catch::StartsWith("slice 0 of tensor 'c'"));
  CHECK_THAT(layouts->SliceName(3), Catch::Contains("not in this layout of 3 slices"));
}

TEST_CASE("a rank that has stopped is named with its reason until it attaches again",
          "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr layouts = LayoutOf({"a", "b"});
  REQUIRE(Attach(registry, 0, layouts, {"a"}).ok());
  REQUIRE(Attach(registry, 1, layouts, {"b"}).ok());
  const Generation generation = registry.Ranks()[1].generation;
  registry.OnStopped(Generation(99), "of nobody");
  registry.OnStopped(generation, "'layers.0' keeps a copy");
  registry.End(generation, FailedPreconditionError("the engine has stopped"));
  CHECK(registry.Missing() ==
        "engine rank 1 of 2 is not attached: it has stopped: 'layers.0' keeps a copy");
  REQUIRE(Attach(registry, 1, layouts, {"b"}).ok());
  registry.End(registry.Ranks()[1].generation, UnavailableError("the engine hung up"));
  CHECK(registry.Missing() == "engine rank 1 of 2 is not attached");
}

TEST_CASE("an engine that is ended for good is paused first and cannot attach again",
          "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr layouts = LayoutOf({"a", "b"});
  std::string runs;
  std::string paused;
  REQUIRE(Attach(registry, 0, layouts, {"a"}, {}, &runs).ok());
  REQUIRE(Attach(registry, 1, layouts, {"b"}, {}, &paused).ok());
  const auto engine = registry.Engine();
  REQUIRE(engine.has_value());
  engine->leases[0]->Resume({});
  registry.EndForGood(FailedPreconditionError("a member was evicted"));
  CHECK(runs == "rpe");
  CHECK(paused == "e");
  CHECK(registry.Ranks().empty());
  CHECK(registry.Missing() == "a member was evicted");
  const Status refused = Attach(registry, 0, layouts, {"a"});
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(Message(refused) == "a member was evicted");
}

}  // namespace
}  // namespace dws
