// Which ranks make an engine. Memory and leases are real, clients are this process.
#include "receiver_daemon/engine/engine_registry.h"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
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

// Attaches one engine rank of two, which holds the tensors `held`, up to its open lease.
Status Attach(EngineRegistry& registry, uint32_t engine_rank, const LayoutSetPtr& layouts,
              const std::set<std::string>& held) {
  uint64_t bytes = 0;
  std::vector<EngineView> views;
  for (EngineView& view : WholeViews(*layouts, 0, bytes)) {
    if (held.contains(view.tensor)) views.push_back(std::move(view));
  }
  const std::vector<uint64_t> region_bytes = {bytes};
  DWS_ASSIGN_OR_RETURN(EngineMapping mapping, MapEngine(*layouts, views, region_bytes, {}));
  DWS_ASSIGN_OR_RETURN(const Generation generation, registry.Reserve({.engine_rank = engine_rank,
                                                                      .engine_world_size = 2,
                                                                      .has_hook = false,
                                                                      .client = "test",
                                                                      .region_bytes = region_bytes,
                                                                      .mapping = std::move(mapping),
                                                                      .layouts = layouts}));
  DWS_ASSIGN_OR_RETURN(CreatedRegion created, CreateHostRegion("rank", bytes));
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(created.fd));
  DWS_RETURN_IF_ERROR(registry.OnDescriptors(generation, std::move(descriptors)));
  DWS_ASSIGN_OR_RETURN(const auto lease, registry.FindLease(engine_rank, generation));
  return lease->Open({.send = [](const LeaseCommand&) {}, .end = [](const Status&) {}});
}

TEST_CASE("ranks that attached under different layouts are never one engine", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr before = LayoutOf({"a", "b", "d"});
  const LayoutSetPtr now = LayoutOf({"a", "b", "c", "d"});
  REQUIRE(Attach(registry, 1, before, {"d"}).ok());
  REQUIRE(Attach(registry, 0, now, {"a", "b", "c"}).ok());
  // Slice 2 is d for the one and c for the other.
  CHECK_FALSE(registry.Engine().has_value());

  registry.EndOthersThan(*now);
  REQUIRE(registry.Ranks().size() == 1);
  CHECK(registry.Ranks()[0].engine_rank == 0);
  REQUIRE(Attach(registry, 1, now, {"d"}).ok());
  const auto engine = registry.Engine();
  REQUIRE(engine.has_value());
  CHECK(engine->memory.size() == 2);
}

TEST_CASE("a rank alone is told which tensor nobody holds once the last rank comes", "[registry]") {
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed);
  const LayoutSetPtr layouts = LayoutOf({"a", "b"});
  REQUIRE(Attach(registry, 0, layouts, {"a"}).ok());
  const Status refused = Attach(registry, 1, layouts, {"a"});
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(Message(refused)).find("'b'") != std::string::npos);
}

}  // namespace
}  // namespace dws
