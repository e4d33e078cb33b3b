// SubscriptionState for the threads of the daemon: the sync streams feed it, the worker and Attach
// read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/wall_clock.h"
#include "common/service/peers/change_signal.h"
#include "common/sync_state/live_state.h"
#include "common/sync_state/sender_watch.h"
#include "common/sync_state/subscription_state.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// The cuts to ask a sender for.
struct CutOrder {
  StreamId stream;
  CutWishes cuts;      // that its layout lacks
  bool probe = false;  // only ask whether it could make them
  uint64_t id = 0;     // its reply repeats it
};

// Threads: safe from any.
class Subscription {
 public:
  struct Peer {
    std::string address;
    bool connected = false;
    std::optional<TrainerRank> trainer_rank;
    std::optional<WeightVersion> newest;
    std::string last_error;
  };

  // One sender for each address. `accepted`: from the ledger. `changed` and the clocks outlive it.
  Subscription(std::vector<std::string> addresses, std::optional<StreamId> accepted,
               ChangeSignal& changed, const Clock& clock,
               const WallClock& wall_clock = kSystemWallClock);

  void OnConnect(SenderIndex sender);
  void OnDisconnect(SenderIndex sender, const Status& reason);
  Status OnWelcome(SenderIndex sender, SenderWelcome welcome);
  Status OnAnnounce(SenderIndex sender, uint64_t nonce, SenderAnnouncement announcement);
  void OnReplacing(SenderIndex sender, const StreamId& stream, RankEpoch rank_epoch,
                   std::optional<WeightVersion> version, std::optional<WeightVersion> base);
  // For senders that are polled: from now on OnLooked has to be called at least every `limit`.
  // Otherwise a poll hangs, and the senders count as lost since the last one.
  void ExpectLooks(Duration limit);
  void OnLooked();
  // The stream was forgotten, and the ledger has `accepted` now. The caller must connect to the
  // senders again.
  void Forget(std::optional<StreamId> accepted);

  using Needed = SubscriptionState::Needed;
  // Replaces the boundaries that `by` needs; senders are asked for those that their layouts lack.
  // UNIMPLEMENTED: senders that are polled cannot be asked.
  Status Want(Needed by, const CutWishes& cuts);
  // The cuts to ask an accepted sender for; nullopt: its layout has all of them, or it is polled.
  std::optional<CutOrder> CutsToAsk(SenderIndex sender) const;
  // Grows when there may be something else to ask for.
  uint64_t cuts_revision() const { return cuts_revision_.load(); }
  // Takes a sender's reply. INVALID_ARGUMENT: the sender can never make these cuts; if an attach
  // needs them, that need is dropped and a refusal is counted.
  void OnRefineReply(SenderIndex sender, uint64_t id, const Status& reply);
  struct Refusals {
    uint64_t count = 0;
    std::string reason;  // of the last
  };
  Refusals refusals() const;
  // Like SubscriptionState::Cutting, but also true for limits::kRecutSettle after a sender has cut,
  // and false if senders are polled.
  bool Cutting() const;

  std::optional<StreamId> stream() const;
  // The newest version that the last announcement of an accepted sender offered, also after that
  // sender has gone.
  std::optional<VersionAt> heard() const;
  // These three as SubscriptionState's.
  std::optional<SyncTarget> Target(Offered least = Offered::kPublished) const;
  std::optional<SyncTarget> Oldest() const;
  std::optional<SyncTarget> TargetAt(WeightVersion version,
                                     Offered least = Offered::kPublished) const;
  // When the last rank announced `version`, which was the target then; nullopt: never, or too long
  // ago.
  std::optional<TimePoint> OfferedAt(const VersionAt& version) const;
  // Waits until all ranks offer `version`, no longer than `timeout`.
  void AwaitTarget(WeightVersion version, Duration timeout) const;
  // UNAVAILABLE: not all trainer ranks have sent a welcome; names the senders that have not.
  // FAILED_PRECONDITION: the ranks' layouts do not fit each other.
  Result<LayoutSetPtr> Layouts() const;
  // Why there is no target, in words.
  std::string MissingTarget() const;
  // For how long not every trainer rank has had an accepted sender that is not Behind; zero: each
  // has one.
  Duration WithoutSender() const;
  // Which senders are not accepted, and why: in words that stay the same while the cause does.
  std::string MissingSenders() const;
  std::vector<Peer> Peers() const;

  // What the engine is known to hold and may generate with. `tokens`: its state tokens by trainer
  // rank.
  void SetLive(std::optional<VersionAt> live, std::vector<Digest> tokens = {});
  std::optional<VersionAt> live() const;
  // The live version to report to a sender; nullopt before the sender is accepted, because its
  // welcome has its rank.
  std::optional<RankVersion> LiveFor(SenderIndex sender) const;
  std::optional<RankVersion> LiveOf(TrainerRank rank) const;
  // Why the versions of an accepted sender cannot be followed; empty: they can.
  std::string Behind() const;

 private:
  void NoteOffered() REQUIRES(mutex_);
  std::string Unheard() const REQUIRES(mutex_);
  void Watch() REQUIRES(mutex_);
  std::optional<RankVersion> LiveOfRank(TrainerRank rank) const REQUIRES(mutex_);
  std::optional<SenderIndex> SenderBehind() const REQUIRES(mutex_);
  // For how long no look has returned; zero: the last one returned within the limit.
  Duration Unseen() const REQUIRES(mutex_);

  const std::vector<std::string> addresses_;
  ChangeSignal& changed_;
  const Clock& clock_;
  const WallClock& wall_clock_;
  mutable Mutex mutex_;
  mutable CondVar announced_;
  SubscriptionState state_ GUARDED_BY(mutex_);
  SenderWatch watch_ GUARDED_BY(mutex_);
  Refusals refusals_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> cuts_revision_{0};
  std::optional<TimePoint> recut_at_ GUARDED_BY(mutex_);     // last
  std::optional<Duration> look_limit_ GUARDED_BY(mutex_);    // none: no looks are expected
  TimePoint looked_at_ GUARDED_BY(mutex_);                   // last
  std::vector<std::string> last_errors_ GUARDED_BY(mutex_);  // by sender
  // By sender: why it was lost or refused last, since it was accepted last.
  std::vector<std::string> causes_ GUARDED_BY(mutex_);
  std::optional<VersionAt> heard_ GUARDED_BY(mutex_);
  static constexpr size_t kOfferedMax = 64;
  struct PastTarget {
    VersionAt version;
    TimePoint at;
  };
  std::deque<PastTarget> offered_ GUARDED_BY(mutex_);  // the last ones, kOfferedMax at most
  std::optional<VersionAt> live_ GUARDED_BY(mutex_);
  std::vector<Digest> live_tokens_ GUARDED_BY(mutex_);
  // `set_` was made from these layouts.
  mutable std::vector<std::shared_ptr<const RankLayout>> set_from_ GUARDED_BY(mutex_);
  mutable Result<LayoutSetPtr> set_ GUARDED_BY(mutex_);
};

}  // namespace dws
