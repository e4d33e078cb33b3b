// What can be varied in a simulation. Everything else follows from the seed.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace dws::sim {

// A rule that is broken on purpose, to show that it is noticed. mutations.py plants the first
// seven in copies of product code, the others are in the models around it.
enum class Mutation : uint8_t {
  kNone,
  kSkipBaseCheck,     // a delta is staged whatever memory it meets
  kSkipFullCheck,     // full tensors are read off a moving snapshot, and not compared
  kTrustLedger,       // an engine that attaches is taken to have what was committed last
  kResumeTorn,        // a commit that failed in the middle resumes the engine all the same
  kIgnoreGeneration,  // an engine that attaches is taken to have what the one before it had
  kAcceptStaleNonce,  // a leader takes a late COMMITTED for the answer to its last COMMIT
  kReleaseAfterLoss,  // a leader that loses a member in a COMMIT releases the others
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
    {Mutation::kDropFsync, "drop fsync"},
    {Mutation::kRetainEverything, "retain everything"},
    {Mutation::kNeverReconnect, "never reconnect"},
};

struct Options {
  uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
  bool trace = false;
};

// The one of the simulation that runs now; product code has no other way to know.
inline Mutation planted = Mutation::kNone;
inline bool Mutated(Mutation mutation) { return planted == mutation; }

}  // namespace dws::sim
