// One trainer rank for conformance tests: random weights, versions of them captured and sealed as
// in the daemon, class-split too, and the weights of each version.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "tests/sender_daemon/weights.h"

namespace dws {

class Rank {
 public:
  explicit Rank(DeltaLogLimits limits = {.bytes_max = uint64_t{1} << 30, .versions_max = 64})
      : limits_(limits), weights_(ManyMagnitudes(layout_, random_)) {
    Register({.incarnation = 1, .id_hi = 2, .id_lo = 3}, RankEpoch(1));
  }

  // Acts like a sender that has just started: no snapshot, no versions.
  void Register(const StreamId& stream, RankEpoch epoch) {
    const bool begins = state_ == nullptr || state_->stream != stream;
    auto snapshot = Snapshot::Create(layout_);
    REQUIRE(snapshot.ok());
    state_ = std::make_shared<const RankState>(
        RankState{.stream = stream,
                  .rank_epoch = epoch,
                  .begins_stream = begins,
                  .snapshot = *std::move(snapshot),
                  .log = std::make_shared<DeltaLog>(layout_, limits_)});
  }

  uint64_t Publish(uint64_t version, double density = 0.01) {
    Update(layout_, weights_, random_, density * 7);  // of BF16
    Perturb(weights_.back(), density, random_);       // of F32
    PublishAll(state_, pool_, version, weights_, DeltaProfile::kWan);
    published_[version] = weights_;
    return version;
  }

  const RankLayout& layout() const { return layout_; }
  const RankStatePtr& state() const { return state_; }
  const Weights& At(uint64_t version) const { return published_.at(version); }

 private:
  const RankLayout layout_ = SmallLayout();
  const DeltaLogLimits limits_;
  std::mt19937_64 random_{20240607};
  ThreadPool pool_{1};
  Weights weights_;
  RankStatePtr state_;
  std::map<uint64_t, Weights> published_;
};

}  // namespace dws
