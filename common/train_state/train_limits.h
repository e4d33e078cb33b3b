// Named limits of on-demand training. They are kept apart from common/model/limits.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/model/limits.h"
#include "common/model/unit_index.h"

namespace dws::limits {

inline constexpr uint32_t kOutboxPushesMax = 1024;                // of one rank
inline constexpr uint64_t kAttemptPiecesMax = uint64_t{1} << 32;  // of one rank
inline constexpr double kPieceWeightMax = 1e15;                   // of one rank in one minibatch
inline constexpr size_t kAbandonReasonBytesMax = kErrorBytesMax;

// A peer sender that is silent for so long counts as lost.
inline constexpr std::chrono::seconds kTrainPeerTimeoutDefault{20};
inline constexpr std::chrono::seconds kTrainPeerTimeoutMax{3600};
// Reports, decisions and offers that were not answered are repeated this often.
inline constexpr std::chrono::seconds kTrainRepeat{1};
inline constexpr uint64_t kObjectBytesDefault = uint64_t{4} << 30;  // that a rank gives others

}  // namespace dws::limits
