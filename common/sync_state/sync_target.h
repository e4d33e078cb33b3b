// What a receiver brings its engine to: a version that all trainer ranks offer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/strong_type.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/sync_state/live_state.h"

namespace dws {

// Numbers the configured senders from 0.
using SenderIndex = StrongType<struct SenderIndexTag, uint32_t>;

// How far a sender is with a version that it offers.
enum class Offered : uint8_t {
  kInTheMaking,  // it is capturing the version, or has captured it, and has not announced it
  kPublished,
};

// The version to bring the engine to, and the senders to ask and to answer.
struct SyncTarget {
  struct Rank {
    SenderIndex sender;
    uint64_t nonce = 0;  // of the announcement that offered the version; 0: it is in the making
    std::shared_ptr<const RankLayout> layout;
    std::optional<Digest> state_token;  // as announced: of the sender's newest version only
    // The base of a delta in the making; none: a full version, or it is published.
    std::optional<WeightVersion> base;
    bool captured = false;  // the sender is capturing a newer one already

    bool in_the_making() const { return nonce == 0; }  // nonces begin at 1
  };
  StreamId stream;
  WeightVersion version;
  std::vector<Rank> ranks;  // by trainer rank

  VersionAt at() const { return {.stream = stream, .version = version}; }
  bool in_the_making() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.in_the_making(); });
  }
};

}  // namespace dws
