// What the receiver knows of the engine's memory.
#pragma once

#include <optional>
#include <vector>

#include "common/model/digest.h"
#include "receiver_daemon/engine_weights.h"
#include "receiver_daemon/subscription.h"

namespace dws {

struct LiveState {
  struct Rank {
    std::vector<SliceState> slices;  // by rank slice
    std::vector<Digest> published;   // what `at` has, held here or not; empty without `at`
    Digest state_token;              // of `at`
  };

  std::vector<Rank> ranks;  // by trainer rank; empty: unknown, to be computed from memory
  // Set: memory was read or written as exactly this version, and is it still but for drift.
  std::optional<VersionAt> at;
  bool drifted = false;  // some slice was found not to be what `published` says

  bool known() const { return !ranks.empty(); }
  // Memory is exactly `at`: the engine may generate.
  bool proved() const { return at.has_value() && !drifted; }
  void Forget() { *this = {}; }
};

// What an engine reports with its rollouts: one hash over the state tokens of all trainer ranks.
inline Digest EngineToken(const std::vector<Digest>& rank_tokens) {
  return StateToken(rank_tokens);
}

}  // namespace dws
