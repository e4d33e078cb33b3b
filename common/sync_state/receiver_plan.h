// Decides what a receiver does next, in pure functions of what it knows about its engine's memory
// (live_state.h), the offers of the senders (subscription_state.h), and its ledger. No I/O, no
// clock: receiver_daemon/worker and receiver_daemon/commit/prepare carry it out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/sync_state/live_state.h"
#include "common/sync_state/subscription_state.h"

namespace dws {

// A receiver with an attached engine whose memory has been read, between two steps.
struct ReceiverView {
  bool drained = false;             // no commit may begin
  bool resync = false;              // an operator asked for a resync
  std::optional<VersionAt> live;    // LiveState::at
  bool drifted = false;             // LiveState::drifted
  std::optional<VersionAt> target;  // what all ranks offer
};

enum class ReceiverStep : uint8_t {
  kHold,     // drained: the engine stays as it is, running or paused
  kResync,   // read everything again, then to the target
  kCurrent,  // the engine runs with the version that it should have
  kAwait,    // nothing can be done without a target; a proved engine would be kCurrent
  kAdopt,    // memory is of no known version: perhaps it is the one committed last; then kAdvance
  kAdvance,  // to the target
};
ReceiverStep NextStep(const ReceiverView& view);

// Returns the version that memory without a known version may hold: the target of the ledger's open
// intent, otherwise the last committed version. It must be of the target's stream and below the
// target (the way to the target compares everything anyway). While an intent is open, it proves
// nothing that memory equals an earlier version: the intent's version may have been reached and
// reported before the engine was restarted.
std::optional<VersionAt> Adoptable(const std::optional<VersionAt>& intended,
                                   const std::optional<VersionAt>& committed,
                                   const VersionAt& target);

// Returns the trainer ranks whose sender announces other weights under the number of the version
// that memory has: the number was used twice (by a sender that started with an older copy of its
// state, or by two senders). Empty if `target` is another version.
std::vector<TrainerRank> RanksPublishedAgain(const LiveState& live, const SyncTarget& target);

// When a version that is staged may be committed.
struct CommitPolicy {
  enum class Kind : uint8_t {
    kImmediate,  // as soon as it is staged and the engine pauses
    kBoundary,   // between two batches of the engine
    kMaxBehind,  // the same, but the engine is never more than max_behind versions behind
  };
  Kind kind = Kind::kImmediate;
  uint64_t max_behind = 0;  // kMaxBehind: at least 1

  bool holds() const { return kind != Kind::kImmediate; }
  friend bool operator==(const CommitPolicy&, const CommitPolicy&) = default;
};

// "immediate", "boundary", "max-behind:4". INVALID_ARGUMENT: anything else.
Result<CommitPolicy> ParseCommitPolicy(std::string_view text);
std::string ToString(const CommitPolicy& policy);

// The state on which the decision depends, for a staged version.
struct CommitView {
  std::optional<VersionAt> live;  // LiveState::at
  bool proved = false;            // memory is exactly `live`, and the engine generates with it
  bool resync = false;            // an operator asked for this commit
  // The newest version that all ranks offer: the staged one, or a newer one.
  VersionAt newest;
};

// Returns how many versions the engine is behind. In another stream numbers begin again: then it is
// behind by all of them.
uint64_t VersionsBehind(const std::optional<VersionAt>& live, const VersionAt& newest);

// Returns whether the staged version may be committed now; otherwise it may be only at a boundary.
// An engine without a proved version (first contact, drift) waits for a commit, and gets one at
// once whatever the policy.
bool MayCommitNow(const CommitPolicy& policy, const CommitView& view);

// How to get to a version.
enum class Way : uint8_t {
  kDelta,        // a delta from the version in memory; slices that it does not prove come in full
  kDescription,  // in full what differs from what the senders describe
  kFull,         // every slice in full
};

// Returns the version of `stream` that memory is known to have: an intent names it as its base, and
// a NACK as the last good version. State adopted from another stream keeps its digests, not its
// number.
std::optional<WeightVersion> VersionIn(const std::optional<VersionAt>& live,
                                       const StreamId& stream);

// The base to ask for a delta from; nullopt: go by the description.
std::optional<WeightVersion> DeltaBase(Way way, const std::optional<VersionAt>& live,
                                       const VersionAt& target);

// Returns whether full tensors may be fetched at once after a delta failed with this error.
// Otherwise the whole step is retried later.
bool FallsBackToFull(const Status& status);

// DATA_LOSS: `manifest` is not `base` -> target of `rank`.
Status CheckManifest(const DeltaManifest& manifest, const VersionAt& target, TrainerRank rank,
                     WeightVersion base);

// What a rank publishes at a version: the digests of all its slices.
struct PublishedState {
  std::vector<Digest> slices;  // by rank slice
  Digest state_token;
};

// Returns the state to which `manifest` leads from `before`, the digests of its base. DATA_LOSS: it
// does not lead to the state token that it names, so its base is not ours.
Result<PublishedState> Follow(const std::vector<Digest>& before, const DeltaManifest& manifest);

// Says whether the change of one slice may be staged. `predicted`: the result of applying it,
// computed from the old values in memory.
enum class SliceVerdict : uint8_t { kAdmitted, kOtherBase, kOtherResult };
SliceVerdict JudgeSlice(const SliceState& live, const SliceDelta& delta, const Digest& predicted);

// Returns the slices to take in full when the description is followed: those that are not as
// `described`.
std::vector<RankSlice> SlicesThatDiffer(std::span<const SliceState> live,
                                        std::span<const Digest> described);

// Slices of a drifted memory that the delta does not touch, and that would stay wrong.
std::vector<RankSlice> DriftedUntouched(const LiveState::Rank& live, const DeltaManifest& manifest);

}  // namespace dws
