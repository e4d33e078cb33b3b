// A receiver's polls of a shared directory: one that hangs, and one that refuses for a while.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/sync_state/presence_limits.h"
#include "receiver_daemon/transfer/shared/shared_links.h"
#include "tests/conformance/shared_directory.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/hanging_file_system.h"

namespace dws {
namespace {

struct Looking {
  explicit Looking(std::optional<StreamId> accepted) {
    REQUIRE(directory.Publish(1).ok());
    subscription.emplace(std::vector<std::string>{"rank-00000"}, accepted, changed,
                         directory.clock);
    auto made = SharedLinks::Create({.root = "/root",
                                     .name = {.job_id = "job", .receiver_id = "r0"},
                                     .ranks = 1,
                                     .pool = &directory.pool,
                                     .poll = std::chrono::milliseconds(5)},
                                    files, *subscription);
    REQUIRE(made.ok());
    links = *std::move(made);
    links->Start();
  }
  ~Looking() {
    files.Release();
    links->Stop();
  }
  bool Accepted() const { return subscription->WithoutSender() == Duration::zero(); }

  Directory directory;
  HangingFileSystem files{directory.files};
  ChangeSignal changed;
  std::optional<Subscription> subscription;
  std::unique_ptr<SharedLinks> links;
};

}  // namespace

TEST_CASE("a shared directory whose polls hang counts as lost after a while", "[shared]") {
  Looking it(std::nullopt);
  REQUIRE(Eventually([&] { return it.Accepted(); }));
  it.files.Hang();
  REQUIRE(Eventually([&] { return it.files.holds_list(); }));
  it.directory.clock.Pass(limits::kLookSilenceMax - std::chrono::seconds(1));
  CHECK(it.Accepted());
  it.directory.clock.Pass(std::chrono::seconds(2));
  CHECK(it.subscription->WithoutSender() > limits::kLookSilenceMax);
  CHECK_THAT(it.subscription->MissingSenders(), Catch::Contains("does its mount hang"));
  it.files.Release();
  CHECK(Eventually([&] { return it.Accepted(); }));
}

TEST_CASE("a refused welcome is checked again with each poll", "[shared]") {
  StreamId newer{.incarnation = 0, .id_hi = 1, .id_lo = 2};
  newer.incarnation = Directory().rank.state()->stream.incarnation + 1;
  Looking it(newer);
  REQUIRE(Eventually([&] {
    return it.subscription->Peers()[0].last_error.find("an old trainer") != std::string::npos;
  }));
  CHECK_FALSE(it.Accepted());
  it.subscription->Forget(std::nullopt);
  CHECK(Eventually([&] {
    const std::optional<SyncTarget> target = it.subscription->Target();
    return target.has_value() && target->version == WeightVersion(1);
  }));
}

}  // namespace dws
