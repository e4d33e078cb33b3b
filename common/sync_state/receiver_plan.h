// What a receiver does next, as pure functions over what it knows: of its engine's memory
// (live_state.h), of what the senders offer (subscription_state.h), and of its ledger. No I/O, no
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
  bool resync = false;              // an operator asked for one
  std::optional<VersionAt> live;    // LiveState::at
  bool drifted = false;             // LiveState::drifted
  std::optional<VersionAt> target;  // what all ranks offer
};

enum class ReceiverStep : uint8_t {
  kHold,     // drained: the engine stays as it is, running or paused
  kResync,   // read everything again, then to the target
  kCurrent,  // the engine runs with what it should have
  kAwait,    // without a target nothing can be done; a proved engine would be kCurrent
  kAdopt,    // memory is of no known version: perhaps it is the one committed last; then kAdvance
  kAdvance,  // to the target
};
ReceiverStep NextStep(const ReceiverView& view);

// The version that memory of no known version may hold: the target of the ledger's open intent,
// else what was committed last; of the target's stream, and below the target (the way there
// compares everything anyway). With an intent open, memory that equals an earlier version proves
// nothing: the intent's version may have been reached and reported before the engine was restarted.
std::optional<VersionAt> Adoptable(const std::optional<VersionAt>& intended,
                                   const std::optional<VersionAt>& committed,
                                   const VersionAt& target);

// The trainer ranks whose sender announces, under the number that memory has, other weights than
// memory's: the number was used twice (a sender that started with an older copy of its state, or
// two of them). Empty when `target` is another version.
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

// What it depends on, for a version that is staged.
struct CommitView {
  std::optional<VersionAt> live;  // LiveState::at
  bool proved = false;            // memory is exactly `live`: the engine generates with it
  bool resync = false;            // an operator asked for this commit
  VersionAt newest;               // that all ranks offer: the staged one, or a newer one
};

// How many versions the engine is behind. In another stream numbers begin again: all of them.
uint64_t VersionsBehind(const std::optional<VersionAt>& live, const VersionAt& newest);

// Whether it may be committed now; otherwise only at a boundary. An engine without a proved version
// (first contact, drift) waits for a commit, and gets one at once whatever the policy.
bool MayCommitNow(const CommitPolicy& policy, const CommitView& view);

// How to get to a version.
enum class Way : uint8_t {
  kDelta,        // from the version memory has; in full what that does not prove
  kDescription,  // in full what differs from what the senders describe
  kFull,         // every slice in full
};

// The version of `stream` that memory is known to have: what an intent names as its base and a NACK
// as the last good one. State adopted from another stream keeps its digests, not its number.
std::optional<WeightVersion> VersionIn(const std::optional<VersionAt>& live,
                                       const StreamId& stream);

// The base to ask for a delta from; nullopt: go by the description.
std::optional<WeightVersion> DeltaBase(Way way, const std::optional<VersionAt>& live,
                                       const VersionAt& target);

// Whether full tensors may be fetched at once after a delta failed with this error. Otherwise the
// whole step is retried later.
bool FallsBackToFull(const Status& status);

// DATA_LOSS: `manifest` is not `base` -> target of `rank`.
Status CheckManifest(const DeltaManifest& manifest, const VersionAt& target, TrainerRank rank,
                     WeightVersion base);

// What a rank publishes at a version: the digests of all its slices.
struct PublishedState {
  std::vector<Digest> slices;  // by rank slice
  Digest state_token;
};

// What `manifest` leads to from `before`, the digests its base has. DATA_LOSS: not to the state
// token it names, so its base is not ours.
Result<PublishedState> Follow(const std::vector<Digest>& before, const DeltaManifest& manifest);

// Whether the change of one slice may be staged. `predicted`: what applying it gives, computed from
// the old values in memory.
enum class SliceVerdict : uint8_t { kAdmitted, kOtherBase, kOtherResult };
SliceVerdict JudgeSlice(const SliceState& live, const SliceDelta& delta, const Digest& predicted);

// The slices to take in full when going by the description: those that are not as `described`.
std::vector<RankSlice> SlicesThatDiffer(std::span<const SliceState> live,
                                        std::span<const Digest> described);

// Slices of a drifted memory that the delta does not touch, and that would stay wrong.
std::vector<RankSlice> DriftedUntouched(const LiveState::Rank& live, const DeltaManifest& manifest);

}  // namespace dws
