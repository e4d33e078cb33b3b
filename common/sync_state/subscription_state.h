// The receiver's side of the sync protocol as a pure class: which versions each configured sender
// can serve or is capturing, and from that the target: the newest version that all ranks of one
// stream offer. No I/O, no clock, no threads: receiver_daemon/transfer/subscription.h drives it and
// guards it.
//
// Rules (protocol.md §1, §2): A lower incarnation is refused, and so is a second id in one
// incarnation. A higher incarnation replaces everything known, unless it is ahead of the clock. A
// rank is claimed by one sender at a time; a higher rank epoch or a dead connection hands it over.
// Inside a stream a rank keeps its part of each tensor, and only a higher rank epoch cuts it
// differently. An announcement only says what can be served, and a newer one replaces an older one.
// A new connection clears nonce and offers and keeps the layout.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/wall_clock.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/refinement.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/sync_state/live_state.h"
#include "common/sync_state/sync_target.h"

namespace dws {

// A sender's welcome, checked.
struct SenderWelcome {
  StreamId stream;
  TrainerRank trainer_rank;
  uint32_t world_size = 1;
  RankEpoch rank_epoch;
  std::shared_ptr<const RankLayout> layout;
};

// The versions that a sender can serve, checked.
struct SenderAnnouncement {
  StreamId stream;
  RankEpoch rank_epoch;
  std::vector<WeightVersion> versions;  // possible targets, ascending
  std::optional<Digest> newest_token;   // state token of the last; none: there are no versions
};

// Which senders are followed, and the target they agree on. Pure: no I/O, no clock, no threads.
class SubscriptionState {
 public:
  struct Making {
    WeightVersion version;
    std::optional<WeightVersion> base;  // of a delta; none: a full version
  };
  struct Sender {
    bool connected = false;
    std::optional<TrainerRank>
        trainer_rank;                    // of the current stream, once welcomed and not refused
    uint64_t nonce = 0;                  // of the announcement the offers come from
    std::vector<WeightVersion> offers;   // ascending
    std::optional<Digest> newest_token;  // of the last of these versions
    std::vector<Making> making;  // ascending, newer than the offers; all but the last are captured
    std::string refusal;         // why its last welcome was refused; empty: it was not
    bool lacks_cuts = false;     // its layout lacks boundaries that are wanted
    bool can_cut = false;        // it says that it could make them
  };

  // `accepted`: the highest stream ever followed, from the ledger.
  SubscriptionState(uint32_t sender_count, std::optional<StreamId> accepted);

  void OnConnect(SenderIndex sender);
  void OnDisconnect(SenderIndex sender);

  // FAILED_PRECONDITION: an old or second stream, a rank that another sender holds, an old rank
  // epoch, a changed part of a tensor, other cuts without a higher epoch, or a world size that
  // differs from that of the others or of the configuration. INVALID_ARGUMENT: the rank is not
  // below the world size. UNAVAILABLE: a new stream or epoch is further ahead of `now` than
  // clock_bound.h allows; it is accepted once the clock is right. After an error the sender offers
  // nothing.
  Status OnWelcome(SenderIndex sender, SenderWelcome welcome, UnixTime now);
  // FAILED_PRECONDITION: not welcomed, or of another stream or epoch. INVALID_ARGUMENT: versions
  // not ascending.
  Status OnAnnounce(SenderIndex sender, uint64_t nonce, SenderAnnouncement announcement);

  // A sender is capturing a version that may be read before it is announced: a delta from `base`,
  // or without base a full one. It offers the versions that it has captured before, too. nullopt:
  // what it has not announced was given up. Has no effect unless the sender was welcomed with that
  // stream and epoch.
  void OnReplacing(SenderIndex sender, const StreamId& stream, RankEpoch rank_epoch,
                   std::optional<WeightVersion> version,
                   std::optional<WeightVersion> base = std::nullopt);

  // An operator had the stream forgotten: `accepted` is the highest one now. Senders have to send a
  // welcome again.
  void Forget(std::optional<StreamId> accepted);

  // Cuts. Every sender is asked for the boundaries that engines need, and for those that the layout
  // of any rank of the stream has had: ranks that cut a tensor differently cannot be followed.

  // The engines that need boundaries: those that want to attach, or those that are attached.
  enum class Needed : uint8_t { kToAttach, kAttached };
  // Replaces the needed cuts. Returns whether that changed anything.
  bool Want(Needed by, const CutWishes& cuts);
  // Grows when other cuts are wanted: an answer counts only for the cuts that were asked for.
  uint64_t wants() const { return wants_; }
  // A sender says that it could make the cuts that it was asked for.
  void OnCanCut(SenderIndex sender);
  // What an accepted sender is to be asked for; empty: its layout has everything.
  CutWishes Lacking(SenderIndex sender) const;
  // Returns whether such engines need any cuts.
  bool Needs(Needed by) const { return !needed_[static_cast<size_t>(by)].empty(); }
  // Returns whether the sender of every rank has all cuts or could make them. Until then senders
  // are only asked whether they could.
  bool AllCanCut() const;
  // Returns whether an accepted sender lacks cuts that layouts have had or that attached engines
  // need (cuts needed only to attach do not count): meanwhile its versions cannot be followed.
  bool Cutting() const;
  // How often a rank of the stream came back with other cuts.
  uint64_t recuts() const { return recuts_; }

  // The stream with the highest incarnation accepted so far.
  const std::optional<StreamId>& stream() const { return stream_; }
  const std::vector<Sender>& senders() const { return senders_; }

  // By trainer rank, once all ranks of the stream have sent theirs; kept when a sender disconnects.
  std::optional<std::vector<std::shared_ptr<const RankLayout>>> Layouts() const;

  // Returns whether every trainer rank has a sender that is connected and was welcomed.
  bool Accepted() const;

  // Returns an accepted sender whose newest offer is below `live`, a version of its stream that the
  // engine has: its version numbers have started again. None: there is no such sender.
  std::optional<SenderIndex> Behind(const VersionAt& live) const;

  // The newest version that all ranks offer now, and are `least` so far with.
  std::optional<SyncTarget> Target(Offered least = Offered::kPublished) const;
  // The oldest version that all ranks have published and offer now.
  std::optional<SyncTarget> Oldest() const;
  // Returns the target if all ranks offer `version` now, and are `least` so far with it.
  std::optional<SyncTarget> TargetAt(WeightVersion version,
                                     Offered least = Offered::kPublished) const;

 private:
  struct Rank {
    SenderIndex sender;
    RankEpoch rank_epoch;
    std::shared_ptr<const RankLayout> layout;
  };
  Status CheckWelcome(SenderIndex sender, const SenderWelcome& welcome, UnixTime now) const;
  // Returns whether the layout of an accepted sender lacks some of `cuts`.
  bool Lacks(const Sender& sender, const CutWishes& cuts) const;
  // The sender no longer holds a rank.
  static void Release(Sender& sender);
  Status CheckClock(const SenderWelcome& welcome, UnixTime now) const;
  void Refuse(SenderIndex sender, const Status& reason);
  // What the sender of a rank offers of `version`, if it is `least` so far with it.
  std::optional<SyncTarget::Rank> Offer(const Rank& rank, WeightVersion version,
                                        Offered least) const;
  // Adds the boundaries of a layout to the learned ones.
  void Learn(const RankLayout& layout);
  // After `more` was wanted of all senders.
  void NoteMore(const CutWishes& more);
  void NoteLacking(Sender& sender) const;
  CutWishes Wanted() const;

  std::optional<StreamId> stream_;
  std::vector<Sender> senders_;
  std::vector<std::optional<Rank>> ranks_;  // of stream_; empty until its first welcome
  CutWishes learned_;                       // boundaries that layouts of stream_ have had
  std::array<CutWishes, 2> needed_;         // by Needed
  uint64_t wants_ = 1;
  uint64_t recuts_ = 0;
};

}  // namespace dws
