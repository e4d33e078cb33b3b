// What can be varied in a simulation. Everything else follows from the seed.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace dws::sim {

// A rule that is broken on purpose, to show that the simulation detects it. mutations.py plants the
// first thirteen and those of on-demand training in copies of product code, the others are in the
// models around it.
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

  // Broken rules of on-demand training.
  kSkipAttempt,     // an owner takes pieces of any attempt
  kSkipNumber,      // an owner adds a piece whatever its number
  kAdvanceEarly,    // the number advances before the add
  kForgetCount,     // a rank's Finish counts although pieces are missing
  kNeverStore,      // the first piece of a unit is added to what was there
  kMixAttempts,     // an attempt's adds begin while those of the last one go on
  kFreeEarly,       // a slot is free when one owner has added its piece
  kNeverRepeat,     // an offer is sent once
  kDecideTwice,     // a leader abandons an attempt after its Step
  kStepEarly,       // a leader decides Step when its own shard is sealed
  kGuessStep,       // a leader that starts again takes a sealed shard for a Step
  kForgetStep,      // a leader that starts again does not look for a Step
  kTellOnce,        // a decision is sent once
  kStepInfinite,    // a gradient that is not finite counts
  kSlowIsDead,      // a rank that does not finish is taken for dead
  kBlameOthers,     // a leader that was stopped takes the others for silent
  kJoinQuietly,     // a member without a record joins the attempt that is open
  kReuseAttempt,    // a leader that starts again continues the last one's numbers
  kFollowAnyTerm,   // a member follows a leader that another one has replaced
  kFollowAnyEpoch,  // a member takes decisions that were made for its last process
  kKeepAttempt,     // a sender that starts again goes on with the attempt
  kFollowAnyJob,    // messages of another incarnation count
  kTwoRoutes,       // a piece goes to its owner and to a combiner
  kNeverHold,       // a combiner finishes at the owner before it sends its sums
  kForgetAsked,     // a combiner does not wait for all that it has asked
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

inline constexpr std::pair<Mutation, std::string_view> kTrainMutations[] = {
    {Mutation::kSkipAttempt, "skip attempt"},
    {Mutation::kSkipNumber, "skip number"},
    {Mutation::kAdvanceEarly, "advance early"},
    {Mutation::kForgetCount, "forget count"},
    {Mutation::kNeverStore, "never store"},
    {Mutation::kMixAttempts, "mix attempts"},
    {Mutation::kFreeEarly, "free early"},
    {Mutation::kNeverRepeat, "never repeat"},
    {Mutation::kDecideTwice, "decide twice"},
    {Mutation::kStepEarly, "step early"},
    {Mutation::kGuessStep, "guess step"},
    {Mutation::kForgetStep, "forget step"},
    {Mutation::kTellOnce, "tell once"},
    {Mutation::kStepInfinite, "step infinite"},
    {Mutation::kSlowIsDead, "slow is dead"},
    {Mutation::kBlameOthers, "blame others"},
    {Mutation::kJoinQuietly, "join quietly"},
    {Mutation::kReuseAttempt, "reuse attempt"},
    {Mutation::kFollowAnyTerm, "follow any term"},
    {Mutation::kFollowAnyEpoch, "follow any epoch"},
    {Mutation::kKeepAttempt, "keep attempt"},
    {Mutation::kFollowAnyJob, "follow any job"},
    {Mutation::kTwoRoutes, "two routes"},
    {Mutation::kNeverHold, "never hold"},
    {Mutation::kForgetAsked, "forget asked"},
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
