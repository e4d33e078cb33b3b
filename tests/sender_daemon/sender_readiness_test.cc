// Why a sender is not ready, in particular when a folder that it publishes to fails.
#include "sender_daemon/app/sender_readiness.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace dws {
namespace {

using std::chrono::seconds;

class Place final : public VersionSink {
 public:
  explicit Place(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  void Offer(const RankStatePtr&) override {}
  void Stop() override {}
  void FillStatus(v1::SenderStatus&) const override {}
  std::optional<PlaceFailure> failure() const override { return fails; }

  std::optional<PlaceFailure> fails;

 private:
  std::string_view name_;
};

struct Sender {
  explicit Sender(Duration place_stale_after) : after(place_stale_after) {
    for (const auto& [name, into] : {std::pair("shared-dir", &first), {"slime-dir", &place}}) {
      auto made = std::make_unique<Place>(name);
      *into = made.get();
      places.push_back(std::move(made));
    }
  }

  Duration after;
  DrainSwitch drain;
  VersionSinks places;
  std::optional<PlaceFailure> views;
  Place* first = nullptr;
  Place* place = nullptr;
  std::string shown = "nothing";
  int changes = 0;
  SenderReadiness readiness{{.awaited = "a trainer",
                             .place_stale_after = after,
                             .drain = drain,
                             .places = places,
                             .views = [this] { return views; },
                             .show =
                                 [this](bool ready, const std::string& reason) {
                                   CHECK(ready == reason.empty());
                                   shown = reason;
                                   ++changes;
                                 }}};
};

TEST_CASE("a sender whose folder fails for too long is not ready until it is written again",
          "[sender]") {
  Sender sender(seconds(30));
  sender.readiness.Update();
  CHECK(sender.shown == "waiting for a trainer");
  sender.readiness.SetRegistered(true);
  CHECK(sender.shown.empty());
  sender.place->fails = {.reason = "it is full", .lasts = seconds(29)};
  sender.readiness.Update();
  CHECK(sender.shown.empty());
  sender.place->fails->lasts = seconds(30);
  sender.readiness.Update();
  CHECK(sender.shown == "for more than 30 s nothing can be published to --slime-dir: it is full");
  const int changes = sender.changes;
  sender.place->fails->lasts = seconds(31);
  sender.readiness.Update();
  CHECK(sender.changes == changes);  // the same is shown, and logged, once
  sender.place->fails.reset();
  sender.readiness.Update();
  CHECK(sender.shown.empty());
}

TEST_CASE("the folder that has failed longest counts", "[sender]") {
  Sender sender(seconds(30));
  sender.readiness.SetRegistered(true);
  sender.first->fails = {.reason = "it is away", .lasts = seconds(2)};
  sender.place->fails = {.reason = "it is full", .lasts = seconds(600)};
  sender.readiness.Update();
  CHECK(sender.shown == "for more than 30 s nothing can be published to --slime-dir: it is full");
  sender.first->fails->lasts = seconds(601);
  CHECK(sender.readiness.Failure()->reason ==
        "nothing can be published to --shared-dir: it is away");
}

TEST_CASE("views that are behind count like a folder", "[sender]") {
  Sender sender(seconds(30));
  sender.readiness.SetRegistered(true);
  sender.place->fails = {.reason = "it is full", .lasts = seconds(40)};
  sender.views = {.reason = "view 'v' is behind", .lasts = seconds(50)};
  sender.readiness.Update();
  CHECK(sender.shown == "for more than 30 s view 'v' is behind");
  sender.views.reset();
  sender.readiness.Update();
  CHECK(sender.shown == "for more than 30 s nothing can be published to --slime-dir: it is full");
}

TEST_CASE("a sender may be kept ready however long its folder fails", "[sender]") {
  Sender sender(seconds(0));
  sender.readiness.SetRegistered(true);
  sender.place->fails = {.reason = "it is full", .lasts = seconds(3600)};
  sender.readiness.Update();
  CHECK(sender.shown.empty());
  CHECK(sender.readiness.Failure()->reason ==
        "nothing can be published to --slime-dir: it is full");
}

TEST_CASE("a drained sender and one that cannot record versions are not ready", "[sender]") {
  Sender sender(seconds(30));
  sender.readiness.SetRegistered(true);
  sender.readiness.SetTrouble(UnavailableError("the disk is full"));
  CHECK(sender.shown == "versions cannot be recorded: the disk is full");
  sender.readiness.SetTrouble(OkStatus());
  CHECK(sender.shown.empty());
  sender.drain.Set(true);
  sender.readiness.Update();
  CHECK(sender.shown.find("drained") == 0);
}

}  // namespace
}  // namespace dws
