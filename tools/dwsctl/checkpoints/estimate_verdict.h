// What an estimate comes to: how a version like this one would best be sent, and what that saves.
#pragma once

#include <cstdint>
#include <string_view>

#include "tools/checkpoint/estimate.h"
#include "tools/dwsctl/base/bandwidth.h"

namespace dws::dwsctl {

enum class SentAs : uint8_t { kNothing, kFull, kFast, kWan };

// "nothing", "full", "DWS fast", "DWS wan"
std::string_view ToString(SentAs sent);

// For one speed of the link.
struct Verdict {
  SentAs sent = SentAs::kNothing;
  uint64_t bytes = 0;
  double seconds = 0;  // of the transfer
};

// Decides like the daemons: in full if a delta would be about as large, class-split on slow links,
// otherwise small and cheap to apply. Pure.
Verdict VerdictAt(const checkpoint::Estimate& estimate, const Bandwidth& bandwidth);

}  // namespace dws::dwsctl
