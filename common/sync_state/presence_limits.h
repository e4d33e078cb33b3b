// Named limits of presence (who is connected) and of reading memory again. They are kept apart from
// limits.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/model/limits.h"

namespace dws::limits {

// A receiver's senders.
inline constexpr size_t kSendersNamedMax = 5;  // in a reason
inline constexpr std::chrono::seconds kStaleAfterDefault{30};
inline constexpr std::chrono::seconds kStaleAfterMax{86'400};
// For a refused welcome, and for asking for cuts.
inline constexpr std::chrono::seconds kRefusedRetryInterval{2};
// A stream ends if its welcome is refused for so long: over another connection the right sender may
// answer.
inline constexpr std::chrono::seconds kRefusedStreamMax{6};
// After one sender has cut tensors, others may do so for the same engine. Engines keep their layout
// until no sender has cut tensors for so long.
inline constexpr std::chrono::milliseconds kRecutSettle{500};
// Beyond the poll interval: a directory that has not answered for longer is lost.
inline constexpr std::chrono::seconds kLookSilenceMax{kSharedHookDeadline + kKeepaliveTimeout};
// A follower's step that makes no progress for so long fails.
inline constexpr std::chrono::seconds kStepStillMax{60};

// For a sender's receivers, and for what it remembers about them.
inline constexpr std::chrono::seconds kKnownReceiversSaveInterval{1};
// How long policy all waits for a receiver that was present before the sender restarted.
inline constexpr std::chrono::seconds kReceiverReturnWait{600};
inline constexpr std::chrono::hours kReceiverForgottenAfter{24};
// How long policy all waits for a receiver that is not connected and whose last report was a
// refusal.
inline constexpr std::chrono::milliseconds kRefusedReturnWait{2 * kReconnectDelayMax};

// Boundaries of an engine: a call of each of its ranks, or of the program that drives it. The
// number of open calls, and of those that wait for a commit to end.
inline constexpr size_t kBoundariesOpenMax = 256;

// The scrub.
inline constexpr uint64_t kScrubBytesPerSecondDefault = uint64_t{1} << 30;
inline constexpr std::chrono::seconds kScrubPassDefault{300};
inline constexpr std::chrono::seconds kScrubPassMax{7 * 86'400};

}  // namespace dws::limits
