#include "common/sync_state/subscription_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/model/clock_bound.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A sender captures the next version only when the one before is nearly recorded: it has fewer.
constexpr size_t kMakingMax = 8;

}  // namespace

SubscriptionState::SubscriptionState(uint32_t sender_count, std::optional<StreamId> accepted)
    : stream_(accepted), senders_(sender_count) {}

void SubscriptionState::OnConnect(SenderIndex sender) {
  Sender& entry = senders_.at(sender.value());
  entry = {};
  entry.connected = true;
}

void SubscriptionState::OnDisconnect(SenderIndex sender) { senders_.at(sender.value()) = {}; }

void SubscriptionState::Release(Sender& sender) {
  sender.trainer_rank.reset();
  sender.offers.clear();
  sender.making.clear();
  sender.lacks_cuts = false;
}

void SubscriptionState::Refuse(SenderIndex sender, const Status& reason) {
  Sender& entry = senders_.at(sender.value());
  Release(entry);
  entry.refusal = std::string(Message(reason));
}

// A stream that is known already passes: a clock that went back does not end a running job.
Status SubscriptionState::CheckClock(const SenderWelcome& welcome, UnixTime now) const {
  const bool same_stream = stream_ == welcome.stream;
  if (!same_stream) {
    if (const std::string ahead = AheadOfClock(welcome.stream, now); !ahead.empty()) {
      return UnavailableError("stream {} is refused: {}", ToString(welcome.stream), ahead);
    }
  }
  const size_t rank = welcome.trainer_rank.value();
  const bool known = same_stream && rank < ranks_.size() && ranks_[rank].has_value() &&
                     welcome.rank_epoch <= ranks_[rank]->rank_epoch;
  if (known) return OkStatus();
  if (const std::string ahead = AheadOfClock(welcome.rank_epoch, now); !ahead.empty()) {
    return UnavailableError("trainer rank {} of stream {} is refused: {}", rank,
                            ToString(welcome.stream), ahead);
  }
  return OkStatus();
}

Status SubscriptionState::CheckWelcome(SenderIndex sender, const SenderWelcome& welcome,
                                       UnixTime now) const {
  if (stream_.has_value() && welcome.stream.incarnation < stream_->incarnation) {
    return FailedPreconditionError(
        "stream {} is older than {}, which this receiver follows: an old trainer is running again; "
        "stop it. "
        "If the one followed was wrong, or a clock went back: `dwsctl forget-stream` resets it",
        ToString(welcome.stream), ToString(*stream_));
  }
  if (stream_.has_value() && welcome.stream.incarnation == stream_->incarnation &&
      welcome.stream != *stream_) {
    return FailedPreconditionError(
        "stream {} has the incarnation of {}, which this receiver follows: two trainers claim the "
        "job; stop "
        "one, or start it with a higher incarnation",
        ToString(welcome.stream), ToString(*stream_));
  }
  DWS_RETURN_IF_ERROR(CheckClock(welcome, now));
  if (welcome.world_size == 0 || welcome.trainer_rank.value() >= welcome.world_size) {
    return InvalidArgumentError("trainer rank {} of world size {}, expected a rank below it",
                                welcome.trainer_rank.value(), welcome.world_size);
  }
  if (welcome.world_size > senders_.size()) {
    return FailedPreconditionError(
        "the trainer has {} ranks but this receiver was given {} senders: name all of "
        "them with --sender, or their number with --shared-ranks",
        welcome.world_size, senders_.size());
  }
  if (stream_ != welcome.stream || ranks_.empty()) return OkStatus();
  if (welcome.world_size != ranks_.size()) {
    return FailedPreconditionError(
        "trainer rank {} has world size {}, the others of stream {} have {}",
        welcome.trainer_rank.value(), welcome.world_size, ToString(*stream_), ranks_.size());
  }
  const std::optional<Rank>& known = ranks_[welcome.trainer_rank.value()];
  if (!known.has_value()) return OkStatus();
  if (welcome.rank_epoch < known->rank_epoch) {
    return FailedPreconditionError(
        "trainer rank {} with epoch {}, epoch {} was seen already: this is an old sender; stop it. "
        "If the "
        "higher epoch was wrong, or a clock went back: `dwsctl forget-stream` resets it",
        welcome.trainer_rank.value(), welcome.rank_epoch.value(), known->rank_epoch.value());
  }
  const Sender& holder = senders_[known->sender.value()];
  if (known->sender != sender && holder.connected && holder.trainer_rank == welcome.trainer_rank &&
      welcome.rank_epoch == known->rank_epoch) {
    return FailedPreconditionError("trainer rank {} is served by two senders; stop one of them",
                                   welcome.trainer_rank.value());
  }
  const bool recut = SameButCuts(*known->layout, *welcome.layout);
  if (recut && welcome.rank_epoch > known->rank_epoch) return OkStatus();
  if (*known->layout != *welcome.layout) {
    return FailedPreconditionError(
        "the layout of trainer rank {} changed inside stream {} (signature {}, was {}): a trainer "
        "with "
        "another layout needs a higher incarnation",
        welcome.trainer_rank.value(), ToString(*stream_), ToString(welcome.layout->signature()),
        ToString(known->layout->signature()));
  }
  return OkStatus();
}

Status SubscriptionState::OnWelcome(SenderIndex sender, SenderWelcome welcome, UnixTime now) {
  DWS_CHECK(welcome.layout != nullptr);
  if (const Status status = CheckWelcome(sender, welcome, now); !status.ok()) {
    Refuse(sender, status);
    return status;
  }
  if (stream_ != welcome.stream) {
    stream_ = welcome.stream;
    ranks_.clear();
    learned_.clear();
    for (Sender& other : senders_) Release(other);
  }
  if (ranks_.empty()) ranks_.resize(welcome.world_size);
  Sender& entry = senders_.at(sender.value());
  // A sender has one rank: the rank that it held before is free again, and a former holder of this
  // rank is fenced.
  for (Sender& other : senders_) {
    if (&other != &entry && other.trainer_rank == welcome.trainer_rank) {
      Release(other);
      other.refusal = "another sender took over its trainer rank";
    }
  }
  entry.trainer_rank = welcome.trainer_rank;
  entry.offers.clear();
  entry.making.clear();
  entry.refusal.clear();
  const RankLayout& layout = *welcome.layout;
  std::optional<Rank>& rank = ranks_[welcome.trainer_rank.value()];
  if (rank.has_value() && *rank->layout != layout) ++recuts_;
  rank =
      Rank{.sender = sender, .rank_epoch = welcome.rank_epoch, .layout = std::move(welcome.layout)};
  entry.can_cut = false;
  NoteLacking(entry);
  Learn(layout);
  return OkStatus();
}

void SubscriptionState::Learn(const RankLayout& layout) {
  // Cuts that engines need already were asked for before any layout had them.
  CutWishes asked = needed_[0];
  Merge(asked, needed_[1]);
  CutWishes more;
  for (const Shard& shard : layout.shards()) {
    const TensorSpec& tensor = shard.tensor;
    if (tensor.cuts.empty() || !Merge(learned_, tensor.name, tensor.cuts)) continue;
    const auto known = asked.find(tensor.name);
    std::vector<Cuts> unasked =
        known == asked.end() ? tensor.cuts : Without(tensor.cuts, known->second);
    if (!unasked.empty()) more.emplace_hint(more.end(), tensor.name, std::move(unasked));
  }
  NoteMore(more);
}

bool SubscriptionState::Want(Needed by, const CutWishes& cuts) {
  CutWishes& needed = needed_[static_cast<size_t>(by)];
  if (needed == cuts) return false;
  needed = cuts;
  ++wants_;
  for (Sender& sender : senders_) {
    sender.can_cut = false;  // its answer was to other cuts
    NoteLacking(sender);
  }
  return true;
}

void SubscriptionState::OnCanCut(SenderIndex sender) { senders_.at(sender.value()).can_cut = true; }

CutWishes SubscriptionState::Wanted() const {
  CutWishes wanted = learned_;
  for (const CutWishes& needed : needed_) Merge(wanted, needed);
  return wanted;
}

CutWishes SubscriptionState::Lacking(SenderIndex sender) const {
  const std::optional<TrainerRank> rank = senders_.at(sender.value()).trainer_rank;
  if (!rank.has_value()) return {};
  return dws::Lacking(*ranks_[rank->value()]->layout, Wanted());
}

bool SubscriptionState::AllCanCut() const {
  return Accepted() && std::ranges::all_of(ranks_, [this](const std::optional<Rank>& rank) {
           const Sender& entry = senders_[rank->sender.value()];
           return !entry.lacks_cuts || entry.can_cut;
         });
}

bool SubscriptionState::Lacks(const Sender& sender, const CutWishes& cuts) const {
  if (!sender.trainer_rank.has_value()) return false;
  return !dws::Lacking(*ranks_[sender.trainer_rank->value()]->layout, cuts).empty();
}

bool SubscriptionState::Cutting() const {
  const CutWishes& attached = needed_[static_cast<size_t>(Needed::kAttached)];
  return std::ranges::any_of(senders_, [&](const Sender& sender) {
    return sender.lacks_cuts && (Lacks(sender, learned_) || Lacks(sender, attached));
  });
}

void SubscriptionState::NoteMore(const CutWishes& more) {
  bool any = false;
  for (Sender& sender : senders_) {
    if (!Lacks(sender, more)) continue;
    sender.lacks_cuts = any = true;
    sender.can_cut = false;
  }
  if (any) ++wants_;
}

void SubscriptionState::NoteLacking(Sender& sender) const {
  sender.lacks_cuts =
      Lacks(sender, learned_) ||
      std::ranges::any_of(needed_, [&](const CutWishes& cuts) { return Lacks(sender, cuts); });
}

void SubscriptionState::Forget(std::optional<StreamId> accepted) {
  stream_ = accepted;
  ranks_.clear();
  learned_.clear();
  for (Sender& sender : senders_) {
    Release(sender);
    sender.refusal.clear();
  }
}

Status SubscriptionState::OnAnnounce(SenderIndex sender, uint64_t nonce,
                                     SenderAnnouncement announcement) {
  Sender& entry = senders_.at(sender.value());
  if (!entry.trainer_rank.has_value() || stream_ != announcement.stream) {
    return FailedPreconditionError(
        "an announcement of stream {} from a sender that was not accepted for it",
        ToString(announcement.stream));
  }
  const Rank& rank = *ranks_[entry.trainer_rank->value()];
  if (announcement.rank_epoch != rank.rank_epoch) {
    return FailedPreconditionError("an announcement of rank epoch {}, the welcome had {}",
                                   announcement.rank_epoch.value(), rank.rank_epoch.value());
  }
  if (announcement.versions.size() > limits::kRetainedVersionsMax) {
    return InvalidArgumentError("an announcement lists {} versions, at most {} are supported",
                                announcement.versions.size(), limits::kRetainedVersionsMax);
  }
  if (nonce <= entry.nonce) {
    return FailedPreconditionError("an announcement with nonce {} after one with {}", nonce,
                                   entry.nonce);
  }
  WeightVersion last;
  for (const WeightVersion version : announcement.versions) {
    if (version <= last) {
      return InvalidArgumentError(
          "an announcement lists version {} after {}, expected them ascending from 1",
          version.value(), last.value());
    }
    last = version;
  }
  entry.nonce = nonce;
  entry.offers = std::move(announcement.versions);
  std::erase_if(entry.making, [last](const Making& made) { return made.version <= last; });
  entry.newest_token = announcement.newest_token;
  return OkStatus();
}

void SubscriptionState::OnReplacing(SenderIndex sender, const StreamId& stream,
                                    RankEpoch rank_epoch, std::optional<WeightVersion> version,
                                    std::optional<WeightVersion> base) {
  Sender& entry = senders_.at(sender.value());
  if (!entry.trainer_rank.has_value() || stream_ != stream) return;
  if (ranks_[entry.trainer_rank->value()]->rank_epoch != rank_epoch) return;
  if (!version.has_value()) return entry.making.clear();
  std::erase_if(entry.making, [&](const Making& made) { return made.version >= *version; });
  if (!entry.offers.empty() && *version <= entry.offers.back()) return;
  if (entry.making.size() == kMakingMax) entry.making.erase(entry.making.begin());
  entry.making.push_back({.version = *version, .base = base});
}

std::optional<std::vector<std::shared_ptr<const RankLayout>>> SubscriptionState::Layouts() const {
  if (ranks_.empty()) return std::nullopt;
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  for (const std::optional<Rank>& rank : ranks_) {
    if (!rank.has_value()) return std::nullopt;
    layouts.push_back(rank->layout);
  }
  return layouts;
}

bool SubscriptionState::Accepted() const {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].has_value()) return false;
    const Sender& sender = senders_[ranks_[rank]->sender.value()];
    if (!sender.connected || sender.trainer_rank != TrainerRank(rank)) return false;
  }
  return !ranks_.empty();
}

std::optional<SenderIndex> SubscriptionState::Behind(const VersionAt& live) const {
  if (stream_ != live.stream) return std::nullopt;
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    const Sender& sender = senders_[i];
    const bool offers = sender.trainer_rank.has_value() && !sender.offers.empty();
    if (offers && sender.offers.back() < live.version) return SenderIndex(i);
  }
  return std::nullopt;
}

std::optional<SyncTarget::Rank> SubscriptionState::Offer(const Rank& rank, WeightVersion version,
                                                         Offered least) const {
  const Sender& sender = senders_[rank.sender.value()];
  SyncTarget::Rank offer{.sender = rank.sender, .layout = rank.layout};
  if (std::binary_search(sender.offers.begin(), sender.offers.end(), version)) {
    offer.nonce = sender.nonce;
    if (version == sender.offers.back()) offer.state_token = sender.newest_token;
    return offer;
  }
  const auto made = std::ranges::find(sender.making, version, &Making::version);
  if (least == Offered::kPublished || made == sender.making.end()) return std::nullopt;
  offer.base = made->base;
  offer.captured = version < sender.making.back().version;
  return offer;
}

std::optional<SyncTarget> SubscriptionState::TargetAt(WeightVersion version, Offered least) const {
  if (!Accepted()) return std::nullopt;
  SyncTarget target{.stream = *stream_, .version = version, .ranks = {}};
  for (const std::optional<Rank>& rank : ranks_) {
    std::optional<SyncTarget::Rank> offer = Offer(*rank, version, least);
    if (!offer.has_value()) return std::nullopt;
    target.ranks.push_back(*std::move(offer));
  }
  return target;
}

std::optional<SyncTarget> SubscriptionState::Target(Offered least) const {
  if (!Accepted()) return std::nullopt;
  const Sender& first = senders_[ranks_.front()->sender.value()];
  std::vector<WeightVersion> versions = first.offers;
  for (const Making& made : first.making) versions.push_back(made.version);
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (auto target = TargetAt(*version, least); target.has_value()) return target;
  }
  return std::nullopt;
}

std::optional<SyncTarget> SubscriptionState::Oldest() const {
  if (!Accepted()) return std::nullopt;
  for (const WeightVersion version : senders_[ranks_.front()->sender.value()].offers) {
    if (auto target = TargetAt(version); target.has_value()) return target;
  }
  return std::nullopt;
}

}  // namespace dws
