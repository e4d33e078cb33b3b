// The state that a ledger's records give, and which record may follow. Pure: no I/O, no clock.
//
// Apply checks first and then changes: after an error the state is unchanged. FAILED_PRECONDITION
// says which rule the record breaks. In a file that is damage; from a caller it is a fenced peer.
#pragma once

#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/ledger/fence.h"
#include "common/ledger/ledger_record.h"

namespace dws {

// The rule of both sides for a stream that is offered: OK when it is `current` itself or has a
// higher incarnation. FAILED_PRECONDITION: a lower incarnation (an old trainer that still runs), or
// a second id in one incarnation (two trainers claim it).
Status CheckStream(const std::optional<StreamId>& current, const StreamId& stream);

// Checks that an operator may order the daemon to forget `stream`. FAILED_PRECONDITION: it is not
// the `recorded` stream; the message names that one.
Status CheckForgotten(const std::optional<StreamId>& recorded, const StreamId& stream);

// The state that a sender's ledger describes. Copyable. Threads: one at a time.
class SenderLedgerState {
 public:
  using Record = SenderRecord;
  static constexpr LedgerKind kKind = LedgerKind::kSender;

  struct Published {
    WeightVersion version;
    std::optional<WeightVersion> base;
    Digest state_token;
    friend bool operator==(const Published&, const Published&) = default;
  };

  // Accepts:
  // StreamOpened: a stream that CheckOpen accepts, with a higher epoch if it is the current one.
  // VersionPublished: of the current stream, above last_version(), with its base below it; the
  //   stream's numbers are not lost.
  // StreamForgotten: the current stream; all that stays known is not to open it again.
  // NumbersLost: the current stream; nothing is known about its versions afterwards.
  Status Apply(const SenderRecord& record);

  // Checks that a trainer may register in `stream`. FAILED_PRECONDITION: CheckStream refuses it, or
  // its version numbers are unknown because they were lost with an earlier ledger or forgotten.
  // Numbers that began again would name other weights than those that receivers have under the same
  // numbers.
  Status CheckOpen(const StreamId& stream) const;
  // The epoch with which to open `stream`: above its own epochs and those of forgotten streams.
  RankEpoch NextEpoch(const StreamId& stream) const;

  const std::optional<StreamId>& stream() const { return stream_; }
  RankEpoch rank_epoch() const { return rank_epoch_; }
  std::optional<WeightVersion> last_version() const { return last_version_; }
  // The newest limits::kRetainedVersionsMax of the current stream, ascending; of those before it
  // was opened again only the last.
  const std::deque<Published>& published() const { return published_; }
  // The latest limits::kForgottenStreamsMax, each with its last rank epoch.
  const std::deque<Fence>& forgotten() const { return forgotten_; }

  // The shortest list of records that gives this state: what compaction writes.
  std::vector<SenderRecord> Records() const;

  // What must not go back; its rank epoch is of its stream only. nullopt: no stream.
  std::optional<Fence> fence() const;
  static SenderRecord Restoring(const Fence& fence) {
    return StreamOpened{.stream = fence.stream, .rank_epoch = fence.rank_epoch};
  }
  // The first records of a ledger that has only the fence.
  static std::vector<SenderRecord> BeginningWith(const Fence& fence) {
    return {Restoring(fence), NumbersLost{.stream = fence.stream}};
  }

  friend bool operator==(const SenderLedgerState&, const SenderLedgerState&) = default;

 private:
  Status ApplyOne(const StreamOpened& record);
  Status ApplyOne(const VersionPublished& record);
  Status ApplyOne(const StreamForgotten& record);
  Status ApplyOne(const NumbersLost& record);

  std::optional<StreamId> stream_;
  RankEpoch rank_epoch_;
  bool numbers_lost_ = false;  // of the current stream
  std::deque<Fence> forgotten_;
  std::optional<WeightVersion> last_version_;
  std::deque<Published> published_;
};

// The state that a receiver's ledger describes. Copyable. Threads: one at a time.
class ReceiverLedgerState {
 public:
  using Record = ReceiverRecord;
  static constexpr LedgerKind kKind = LedgerKind::kReceiver;

  struct Committed {
    StreamId stream;
    WeightVersion version;
    friend bool operator==(const Committed&, const Committed&) = default;
  };

  // Accepts:
  // StreamAccepted: a stream that CheckStream accepts.
  // CommitIntent: of the accepted stream, with a target not below that stream's committed version
  //   nor below that of an open intent of that stream. It replaces an open intent: recovery rolls
  //   forward, possibly to a newer target.
  // VersionCommitted: exactly the open intent.
  // GroupDecided: of the accepted stream, not below its committed version; replaces an open
  //   decision.
  // GroupSettled: a decision is open.
  // CommitAbandoned: exactly the open intent, if it did not replace another. An earlier intent may
  //   have torn the memory, and a later one that wrote nothing does not make it whole.
  // StreamForgotten: the accepted stream. What is known about its versions is dropped. The newest
  //   other stream about which something is known becomes the accepted one.
  Status Apply(const ReceiverRecord& record);

  // The highest incarnation that was accepted and not forgotten, and its id.
  const std::optional<StreamId>& stream() const { return stream_; }
  // The version in the engine's memory when it was last known whole; possibly of an earlier stream.
  const std::optional<Committed>& committed() const { return committed_; }
  // Set: memory may hold a mixture of versions. Recompute its digests before the engine may run.
  const std::optional<CommitIntent>& open_intent() const { return open_intent_; }

  // What this receiver, as the leader of a group, decided and has not settled.
  const std::optional<GroupDecided>& decided() const { return decided_; }

  std::vector<ReceiverRecord> Records() const;

  // What must not go back; its rank epoch is 0. nullopt: no stream.
  std::optional<Fence> fence() const;
  static ReceiverRecord Restoring(const Fence& fence) {
    return StreamAccepted{.stream = fence.stream};
  }
  static std::vector<ReceiverRecord> BeginningWith(const Fence& fence) {
    return {Restoring(fence)};
  }

  friend bool operator==(const ReceiverLedgerState&, const ReceiverLedgerState&) = default;

 private:
  Status ApplyOne(const StreamAccepted& record);
  Status ApplyOne(const CommitIntent& record);
  Status ApplyOne(const VersionCommitted& record);
  Status ApplyOne(const CommitAbandoned& record);
  Status ApplyOne(const GroupDecided& record);
  Status ApplyOne(const GroupSettled& record);
  Status ApplyOne(const StreamForgotten& record);
  Status CheckNotBelow(const StreamId& stream, WeightVersion version, std::string_view what) const;
  Status CheckOpen(const StreamId& stream, WeightVersion target, std::string_view what) const;

  std::optional<StreamId> stream_;
  std::optional<Committed> committed_;
  std::optional<CommitIntent> open_intent_;
  bool intent_replaced_another_ = false;
  std::optional<GroupDecided> decided_;
};

}  // namespace dws
