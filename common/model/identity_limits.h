// The maxima of identities, in addition to limits.h: incarnations and rank epochs, the ledgers that
// record them, names of views, and the certificates that dwsctl makes.
#pragma once

#include <chrono>
#include <cstddef>

namespace dws::limits {

// Numbers that begin at the wall clock: incarnations and rank epochs.
inline constexpr std::chrono::hours kAheadOfClockMax{24};

inline constexpr size_t kDamagedLedgersMax = 8;     // kept beside one ledger
inline constexpr size_t kForgottenStreamsMax = 64;  // that a sender's ledger refuses by name

// Of the name of a view: a recipe and the tensors that it leaves out.
inline constexpr size_t kViewNameBytesMax = 4096;
inline constexpr size_t kViewsFollowedMax = 8;  // of one sender

// Certificates.
inline constexpr int kAuthorityDaysMax = 7300;
inline constexpr int kAuthorityDaysDefault = 3650;
inline constexpr int kCertificateDaysMax = 825;
inline constexpr int kCertificateDaysDefault = 90;
inline constexpr int kRenewWithinDaysDefault = 30;
inline constexpr std::chrono::hours kCertificateSkew{1};  // valid so long before now: slow clocks
inline constexpr size_t kCertificateHostsMax = 64;
inline constexpr size_t kCertificatesMax = 8192;  // of one command

}  // namespace dws::limits
