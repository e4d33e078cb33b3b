// Another receiver of the job in a conformance test: it serves the weights of its engine.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "common/service/lifecycle.h"
#include "receiver_daemon/peers/peer_server.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/serve/peer_directory.h"
#include "tests/receiver_daemon/fake_engine.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

class PeerSide {
 public:
  // Says to the sender of `directory` that it serves others. Both outlive it.
  PeerSide(RankStatePtr state, PeerDirectory& directory)
      : state_(std::move(state)), directory_(directory) {
    directory_.Connect("other", kConnection, server_->address(), "");
  }

  void Publish(uint64_t version, const Weights& weights) {
    server_->weights().Withdraw();
    for (uint32_t s = 0; s < weights.size(); ++s) engine_.Write(0, s, weights[s]);
    const VersionAt at{.stream = state_->stream, .version = WeightVersion(version)};
    server_->weights().Offer(engine_.weights, at);
    directory_.OnCommitted(kConnection, at);
  }
  // Flips a bit of the first slice; again: flips it back. It says nothing of that.
  void Damage() {
    SliceBytes bytes = engine_.Read(0, 0);
    bytes[0] ^= std::byte{1};
    engine_.Write(0, 0, bytes);
  }

 private:
  static constexpr ConnectionId kConnection{uint64_t{1} << 20};

  static std::unique_ptr<PeerServer> Serve(Lifecycle& lifecycle, const Clock& clock) {
    auto server = PeerServer::Start({.listen = "127.0.0.1:0", .insecure = true, .job_id = "job"},
                                    lifecycle, clock);
    REQUIRE(server.ok());
    return *std::move(server);
  }
  static LayoutSetPtr LayoutsOf(const RankState& state) {
    auto layouts = LayoutSet::Create({std::make_shared<const RankLayout>(state.layout())});
    REQUIRE(layouts.ok());
    return *layouts;
  }

  const RankStatePtr state_;
  PeerDirectory& directory_;
  RealClock clock_;
  Lifecycle lifecycle_;
  FakeEngine engine_{LayoutsOf(*state_)};
  std::unique_ptr<PeerServer> server_ = Serve(lifecycle_, clock_);  // ends before the engine
};

}  // namespace dws
