// The maxima of identities, in addition to limits.h: incarnations and rank epochs, the ledgers that
// record them, and names of views.
#pragma once

#include <chrono>
#include <cstddef>

namespace dws::limits {

// Numbers that begin at the wall clock: incarnations and rank epochs.
inline constexpr std::chrono::hours kAheadOfClockMax{24};

inline constexpr size_t kDamagedLedgersMax = 8;     // number of files kept beside one ledger
inline constexpr size_t kForgottenStreamsMax = 64;  // that a sender's ledger refuses by name

// The length of a view's name: a recipe and the tensors that it leaves out.
inline constexpr size_t kViewNameBytesMax = 4096;
inline constexpr size_t kViewsFollowedMax = 8;  // of one sender

}  // namespace dws::limits
