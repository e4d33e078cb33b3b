// What can be varied in a simulation. Everything else follows from the seed.
#pragma once

#include <cstdint>
#include <string_view>

namespace dws::sim {

// A rule that the simulation's shells break on purpose, to show that it is noticed. The product's
// classes know nothing of it.
enum class Mutation : uint8_t {
  kNone,
  kSkipBaseCheck,     // a delta is staged whatever memory it meets
  kSkipFullCheck,     // full tensors are read off a moving snapshot, and not compared
  kTrustLedger,       // an engine that attaches is taken to have what was committed last
  kResumeTorn,        // a commit that failed in the middle resumes the engine all the same
  kIgnoreGeneration,  // what was staged is written to an engine that attached anew
  kDropFsync,         // a receiver's records are acknowledged before they are durable
  kAcceptStaleNonce,  // a leader takes a late acknowledgement for the answer to its last question
  kAbortAfterCommit,  // a leader that loses a member in a COMMIT goes back, and members obey
  kRetainEverything,  // a sender's log has no limit
  kNeverReconnect,    // a receiver does not connect again
};

struct Options {
  uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
  bool trace = false;
};

}  // namespace dws::sim
