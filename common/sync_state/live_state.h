// What a receiver knows of its engine's memory: values only. The decisions that follow from it are
// in receiver_plan.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// A version with the stream it belongs to: a number alone proves nothing.
struct VersionAt {
  StreamId stream;
  WeightVersion version;

  friend bool operator==(const VersionAt&, const VersionAt&) = default;
};

// A version with its state token of one trainer rank: that names its weights, too.
struct RankVersion {
  VersionAt at;
  Digest state_token;
};

// The known state of one slice in the engine's memory.
struct SliceState {
  enum class Kind : uint8_t {
    kNotHeld,  // the engine excludes it, or it has no elements: nothing to compare
    kHeld,     // every copy has `digest`
    kDiffers,  // copies differ from each other
  };
  Kind kind = Kind::kNotHeld;
  Digest digest;

  friend bool operator==(const SliceState&, const SliceState&) = default;

  bool Matches(const Digest& expected) const {
    return kind == Kind::kNotHeld || (kind == Kind::kHeld && digest == expected);
  }
};

// The proved state of the engine's memory, slice by slice.
struct LiveState {
  struct Rank {
    std::vector<SliceState> slices;  // by rank slice
    std::vector<Digest> published;   // what `at` has, held here or not; empty without `at`
    Digest state_token;              // of `at`
  };

  std::vector<Rank> ranks;  // by trainer rank; empty: unknown, to be computed from memory
  // Set: memory was read or written as exactly this version, and still is, except for drift.
  std::optional<VersionAt> at;
  bool drifted = false;  // some slice was found to differ from `published`

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
