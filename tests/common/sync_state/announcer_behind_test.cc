// Since when each receiver is behind, against a model that looks at all receivers for every report.
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/sync_state/announcer_state.h"

namespace dws {
namespace {

constexpr StreamId kStream{.incarnation = 1, .id_hi = 0, .id_lo = 11};
constexpr Digest kToken{.lane0 = 1, .lane1 = 2};

class Model {
 public:
  void Connect(const std::string& id, TimePoint now) {
    const auto [entry, is_new] = receivers_.try_emplace(id);
    if ((is_new || entry->second.awaited) && AnyAbove(entry->second.committed)) {
      entry->second.behind_since = now;
    }
    entry->second.awaited = false;
  }
  void Remember(const std::string& id) {
    if (receivers_.contains(id)) return;
    receivers_[id].awaited = true;
  }
  void Forget(const std::string& id) { receivers_.erase(id); }
  void Commit(const std::string& id, WeightVersion version, TimePoint now) {
    Receiver& receiver = receivers_.at(id);
    if (receiver.committed >= version) return;
    receiver.committed = version;
    receiver.behind_since = AnyAbove(version) ? std::optional(now) : std::nullopt;
    for (auto& [other_id, other] : receivers_) {
      if (other.committed < version && !other.behind_since.has_value()) other.behind_since = now;
    }
  }
  void Publish(WeightVersion version) {
    for (auto& [id, receiver] : receivers_) {
      if (receiver.committed > version) receiver = {};
    }
  }
  std::optional<TimePoint> behind_since(const std::string& id) const {
    return receivers_.at(id).behind_since;
  }

 private:
  struct Receiver {
    bool awaited = false;
    std::optional<WeightVersion> committed;
    std::optional<TimePoint> behind_since;
  };
  bool AnyAbove(std::optional<WeightVersion> version) const {
    for (const auto& [id, receiver] : receivers_) {
      if (receiver.committed > version) return true;
    }
    return false;
  }
  std::map<std::string, Receiver> receivers_;
};

TEST_CASE("receivers are behind since the same time as when all are looked at for every report",
          "[protocol]") {
  std::mt19937_64 random{Catch::rngSeed()};
  CAPTURE(Catch::rngSeed());
  for (int run = 0; run < 50; ++run) {
    AnnouncerState state;
    Model model;
    state.StartStream(kStream);
    std::map<std::string, ConnectionId> connections;
    for (int step = 1; step < 300; ++step) {
      const TimePoint now{std::chrono::seconds(step)};
      const std::string id = "r" + std::to_string(random() % 7);
      const WeightVersion version(1 + random() % 9);
      const bool connected = connections.contains(id);
      const uint64_t what = random() % 20;
      if (what < 12 && connected) {
        REQUIRE(state.OnCommitted(connections[id], kStream,
                                  {.version = version, .state_token = kToken}, now));
        model.Commit(id, version, now);
      } else if (what < 15) {
        connections[id] = ConnectionId(static_cast<uint64_t>(step));
        REQUIRE(state.Connect(id, connections[id], now).ok());
        model.Connect(id, now);
      } else if (what < 17 && connected) {
        state.Disconnect(connections[id], now);
        connections.erase(id);
      } else if (what < 18 && !connected) {
        if (state.Forget(id).ok()) model.Forget(id);
      } else if (what < 19) {
        state.Remember(id, true);
        model.Remember(id);
      } else {
        state.OnPublished(version, std::span(&kToken, 1));
        model.Publish(version);
      }
      for (const auto& [known, receiver] : state.receivers()) {
        CAPTURE(run, step, known);
        REQUIRE(receiver.behind_since == model.behind_since(known));
      }
    }
  }
}

}  // namespace
}  // namespace dws
