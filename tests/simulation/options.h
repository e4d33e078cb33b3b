// What can be varied in a simulation. Everything else follows from the seed.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace dws::sim {

// A rule that is broken on purpose, to show that the simulation detects it. mutations.py plants the
// first thirteen in copies of product code, the others are in the models around it.
enum class Mutation : uint8_t {
  kNone,
  kOneDeltaSource,    // a delta is given up when its first source fails
  kOneFullSource,     // full tensors are given up when their first source fails
  kSkipBaseCheck,     // a delta is staged whatever memory it meets
  kSkipFullCheck,     // full tensors are read from a moving snapshot and not compared
  kTrustLedger,       // an engine that attaches is assumed to hold the last committed version
  kResumeTorn,        // a commit that failed in the middle still resumes the engine
  kIgnoreGeneration,  // an engine that attaches is assumed to hold its predecessor's version
  kAcceptStaleNonce,  // a leader accepts a late COMMITTED as the answer to its last COMMIT
  kReleaseAfterLoss,  // a leader that loses a member in a COMMIT releases the others
  kSkipDecision,      // a leader orders a commit that it has not recorded
  kKeepTorn,          // after a commit that failed in the middle the old version counts as there
  kStageTooMuch,      // a receiver stages past its cap
  kIgnorePolicy,      // a version that is held back is committed between boundaries
  kDropFsync,         // a receiver's records are acknowledged before they are durable
  kRetainEverything,  // a sender's log has no limit
  kNeverReconnect,    // a receiver does not connect again
};

inline constexpr std::pair<Mutation, std::string_view> kMutations[] = {
    {Mutation::kSkipBaseCheck, "skip base check"},
    {Mutation::kSkipFullCheck, "skip full check"},
    {Mutation::kTrustLedger, "trust ledger"},
    {Mutation::kResumeTorn, "resume torn"},
    {Mutation::kIgnoreGeneration, "ignore generation"},
    {Mutation::kAcceptStaleNonce, "accept stale nonce"},
    {Mutation::kReleaseAfterLoss, "release after loss"},
    {Mutation::kSkipDecision, "skip decision"},
    {Mutation::kKeepTorn, "keep torn"},
    {Mutation::kStageTooMuch, "stage too much"},
    {Mutation::kIgnorePolicy, "ignore policy"},
    {Mutation::kDropFsync, "drop fsync"},
    {Mutation::kRetainEverything, "retain everything"},
    {Mutation::kNeverReconnect, "never reconnect"},
    {Mutation::kOneDeltaSource, "one delta source"},
    {Mutation::kOneFullSource, "one full source"},
};

struct Options {
  uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
  bool trace = false;
};

// The mutation of the running simulation; product code has no other way to get it.
inline Mutation planted = Mutation::kNone;
inline bool Mutated(Mutation mutation) { return planted == mutation; }

}  // namespace dws::sim
