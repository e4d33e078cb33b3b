#include "sender_daemon/publish/offer_loop.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/threads/mutex.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

RankStatePtr MakeOffer(uint64_t epoch) {
  return std::make_shared<const RankState>(RankState{.rank_epoch = RankEpoch(epoch)});
}

// A publisher for the loop: returns the results that the test sets, and records its offers.
class Publisher {
 public:
  explicit Publisher(Duration retry_delay = std::chrono::milliseconds(1))
      : loop({.failed_event = "test_failed", .retry_delay = retry_delay},
             [this](const RankStatePtr& offered) { return Step(offered); }) {}

  void Answer(Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  std::vector<uint64_t> seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }

  std::atomic<int> left{0};  // rounds after which there is nothing to do
  OfferLoop loop;

 private:
  Result<bool> Step(const RankStatePtr& offered) {
    MutexLock lock(mutex_);
    seen_.push_back(offered->rank_epoch.value());
    if (!status_.ok()) return status_;
    return left.fetch_sub(1) > 1;
  }

  mutable Mutex mutex_;
  Status status_ GUARDED_BY(mutex_);
  std::vector<uint64_t> seen_ GUARDED_BY(mutex_);
};

TEST_CASE("an offer is processed until there is nothing left to do", "[offer_loop]") {
  Publisher publisher;
  publisher.left = 5;
  publisher.loop.Start();
  CHECK(publisher.loop.settled());  // nothing was offered
  publisher.loop.Offer(MakeOffer(7));
  REQUIRE(Eventually([&] { return publisher.loop.settled(); }));
  const std::vector<uint64_t> seen = publisher.seen();
  REQUIRE(seen.size() >= 5);
  CHECK(seen == std::vector<uint64_t>(seen.size(), 7));
  publisher.loop.Offer(MakeOffer(8));
  REQUIRE(Eventually([&] { return publisher.loop.settled(); }));
  CHECK(publisher.seen().back() == 8);
  CHECK(publisher.loop.trouble().ok());
  CHECK(publisher.loop.failures() == 0);
}

TEST_CASE("a failed offer is retried and counts as settled after its first attempt",
          "[offer_loop]") {
  Publisher publisher;
  publisher.Answer(UnavailableError("the disk is full"));
  publisher.loop.Start();
  publisher.loop.Offer(MakeOffer(1));
  CHECK(Eventually([&] { return publisher.loop.failures() >= 3; }));
  CHECK(publisher.loop.settled());
  CHECK(publisher.loop.trouble() == UnavailableError("the disk is full"));
  publisher.Answer(OkStatus());
  CHECK(Eventually([&] { return publisher.loop.trouble().ok(); }));
  CHECK(publisher.loop.settled());
}

TEST_CASE("a failure before the newest offer does not settle that offer", "[offer_loop]") {
  Publisher publisher(std::chrono::hours(1));
  publisher.Answer(UnavailableError("the disk is full"));
  publisher.loop.Offer(MakeOffer(1));
  publisher.loop.Start();
  REQUIRE(Eventually([&] { return publisher.loop.settled(); }));
  // After a failure it waits before the next attempt, also for this new offer.
  publisher.loop.Offer(MakeOffer(2));
  CHECK_FALSE(publisher.loop.settled());
  CHECK(publisher.loop.failures() == 1);
  publisher.loop.Stop();  // at once, although the loop waits
}

TEST_CASE("a publisher that fails says why and for how long", "[offer_loop]") {
  Publisher publisher;
  publisher.Answer(UnavailableError("the disk is full"));
  publisher.loop.Offer(MakeOffer(1));
  CHECK_FALSE(publisher.loop.failure().has_value());
  publisher.loop.Start();
  REQUIRE(Eventually([&] { return publisher.loop.failures() >= 3; }));
  const auto failure = publisher.loop.failure();
  REQUIRE(failure.has_value());
  CHECK(failure->reason == "the disk is full");
  // From the first failure on, also when the reason changes.
  publisher.Answer(UnavailableError("the disk is gone"));
  CHECK(Eventually([&] { return publisher.loop.failure()->reason == "the disk is gone"; }));
  CHECK(publisher.loop.failure()->lasts > failure->lasts);
  publisher.Answer(OkStatus());
  CHECK(Eventually([&] { return !publisher.loop.failure().has_value(); }));
}

TEST_CASE("a publisher that hangs is reported until it goes on", "[offer_loop]") {
  std::atomic<bool> hangs{true};
  std::atomic<bool> asks{false};
  OfferLoop* self = nullptr;
  OfferLoop loop({.failed_event = "test_failed", .still_max = std::chrono::milliseconds(20)},
                 [&](const RankStatePtr&) -> Result<bool> {
                   while (hangs) {
                     if (asks) self->wanted();
                     std::this_thread::yield();
                   }
                   return false;
                 });
  self = &loop;
  loop.Offer(MakeOffer(1));
  loop.Start();
  CHECK(Eventually([&] { return loop.failure().has_value(); }));
  CHECK(loop.failure()->reason.find("no progress") != std::string::npos);
  asks = true;  // a long step that works asks whether it is still wanted
  CHECK(Eventually([&] { return !loop.failure().has_value(); }));
  asks = false;
  CHECK(Eventually([&] { return loop.failure().has_value(); }));
  hangs = false;
  CHECK(Eventually([&] { return !loop.failure().has_value(); }));
}

TEST_CASE("a cancelled step does not count as a failure", "[offer_loop]") {
  Publisher publisher;
  publisher.Answer(CancelledError("it ends"));
  publisher.loop.Start();
  publisher.loop.Offer(MakeOffer(1));
  CHECK(Eventually([&] { return publisher.seen().size() >= 3; }));
  CHECK_FALSE(publisher.loop.settled());
  CHECK(publisher.loop.failures() == 0);
  CHECK(publisher.loop.trouble().ok());
}

TEST_CASE("a long step can check whether it is still wanted", "[offer_loop]") {
  std::atomic<bool> begun{false};
  OfferLoop* self = nullptr;
  OfferLoop loop({.failed_event = "test_failed"}, [&](const RankStatePtr&) -> Result<bool> {
    begun = true;
    while (self->wanted()) std::this_thread::yield();
    return CancelledError("it ends");
  });
  self = &loop;
  loop.Offer(MakeOffer(1));
  loop.Start();
  REQUIRE(Eventually([&] { return begun.load(); }));
  loop.Stop();
  CHECK_FALSE(loop.wanted());
}

}  // namespace
}  // namespace dws
