#include "receiver_daemon/transfer/subscription.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"

namespace dws {

Subscription::Subscription(std::vector<std::string> addresses, std::optional<StreamId> accepted,
                           ChangeSignal& changed, const Clock& clock, const WallClock& wall_clock)
    : addresses_(std::move(addresses)),
      changed_(changed),
      clock_(clock),
      wall_clock_(wall_clock),
      state_(static_cast<uint32_t>(addresses_.size()), accepted),
      watch_(clock.Now()),
      last_errors_(addresses_.size(), "not connected yet"),
      causes_(addresses_.size()),
      set_(UnavailableError("no layout yet")) {}

void Subscription::Watch() {
  const bool cutting = !look_limit_.has_value() && state_.Cutting();
  watch_.Observe(state_.Accepted() && !cutting && !SenderBehind().has_value(), clock_.Now());
}

std::optional<SenderIndex> Subscription::SenderBehind() const {
  return live_.has_value() ? state_.Behind(*live_) : std::nullopt;
}

std::string Subscription::Behind() const {
  MutexLock lock(mutex_);
  const std::optional<SenderIndex> sender = SenderBehind();
  if (!sender.has_value()) return "";
  return fmt::format(
      "sender {} has stream {} up to version {}, the engine has version {} of it: the numbers of "
      "the "
      "stream began again (an older copy of the sender's state, or a second sender); start the "
      "trainer with a new stream",
      addresses_[sender->value()], ToString(live_->stream),
      state_.senders()[sender->value()].offers.back().value(), live_->version.value());
}

void Subscription::OnConnect(SenderIndex sender) {
  {
    MutexLock lock(mutex_);
    state_.OnConnect(sender);
    Watch();
    last_errors_[sender.value()] = "";
  }
  changed_.Notify();
}

void Subscription::OnDisconnect(SenderIndex sender, const Status& reason) {
  {
    MutexLock lock(mutex_);
    state_.OnDisconnect(sender);
    Watch();
    causes_[sender.value()] = last_errors_[sender.value()] = std::string(Message(reason));
  }
  changed_.Notify();
}

// SubscriptionState decides; this class guards it, keeps what is shown, and wakes the worker.
Status Subscription::OnWelcome(SenderIndex sender, SenderWelcome welcome) {
  Status status;
  {
    MutexLock lock(mutex_);
    const uint64_t recuts = state_.recuts();
    status = state_.OnWelcome(sender, std::move(welcome), wall_clock_.Now());
    if (state_.recuts() != recuts) recut_at_ = clock_.Now();
    ++cuts_revision_;
    Watch();
    causes_[sender.value()] = last_errors_[sender.value()] = std::string(Message(status));
  }
  changed_.Notify();
  return status;
}

Status Subscription::OnAnnounce(SenderIndex sender, uint64_t nonce,
                                SenderAnnouncement announcement) {
  Status status;
  {
    MutexLock lock(mutex_);
    std::optional<VersionAt> newest;
    if (!announcement.versions.empty()) {
      newest = VersionAt{.stream = announcement.stream, .version = announcement.versions.back()};
    }
    status = state_.OnAnnounce(sender, nonce, std::move(announcement));
    if (status.ok() && newest.has_value()) heard_ = newest;
    NoteOffered();
    Watch();
    announced_.NotifyAll();
  }
  changed_.Notify();
  return status;
}

void Subscription::OnReplacing(SenderIndex sender, const StreamId& stream, RankEpoch rank_epoch,
                               std::optional<WeightVersion> version,
                               std::optional<WeightVersion> base) {
  {
    MutexLock lock(mutex_);
    state_.OnReplacing(sender, stream, rank_epoch, version, base);
  }
  changed_.Notify();
}

Status Subscription::Want(Needed by, const CutWishes& cuts) {
  bool changed = false;
  {
    MutexLock lock(mutex_);
    if (!cuts.empty() && look_limit_.has_value()) {
      return UnimplementedError("receivers that read a shared directory cannot ask for cuts");
    }
    changed = state_.Want(by, cuts);
    if (changed) {
      ++cuts_revision_;
      Watch();
    }
  }
  if (changed) changed_.Notify();
  return OkStatus();
}

std::optional<CutOrder> Subscription::CutsToAsk(SenderIndex sender) const {
  MutexLock lock(mutex_);
  const SubscriptionState::Sender& entry = state_.senders()[sender.value()];
  if (!entry.lacks_cuts || look_limit_.has_value()) return std::nullopt;
  return CutOrder{.stream = *state_.stream(),
                  .cuts = state_.Lacking(sender),
                  .probe = !state_.AllCanCut(),
                  .id = state_.wants()};
}

void Subscription::OnRefineReply(SenderIndex sender, uint64_t id, const Status& reply) {
  {
    MutexLock lock(mutex_);
    if (id != state_.wants()) return;  // the wishes have changed since
    if (reply.ok()) {
      state_.OnCanCut(sender);
      if (state_.AllCanCut()) ++cuts_revision_;
    } else {
      causes_[sender.value()] =
          fmt::format("it does not cut its tensors as engines need them: {}", Message(reply));
    }
    if (absl::IsInvalidArgument(reply) && state_.Needs(Needed::kToAttach)) {
      ++refusals_.count;
      refusals_.reason = fmt::format("sender {}: {}", addresses_[sender.value()], Message(reply));
      state_.Want(Needed::kToAttach, {});
      ++cuts_revision_;
      Watch();
    }
  }
  changed_.Notify();
}

Subscription::Refusals Subscription::refusals() const {
  MutexLock lock(mutex_);
  return refusals_;
}

bool Subscription::Cutting() const {
  MutexLock lock(mutex_);
  if (look_limit_.has_value()) return false;
  const bool recently = recut_at_.has_value() && clock_.Now() < *recut_at_ + limits::kRecutSettle;
  return recently || state_.Cutting();
}

void Subscription::ExpectLooks(Duration limit) {
  MutexLock lock(mutex_);
  look_limit_ = limit;
  looked_at_ = clock_.Now();
}

void Subscription::OnLooked() {
  MutexLock lock(mutex_);
  looked_at_ = clock_.Now();
}

Duration Subscription::Unseen() const {
  if (!look_limit_.has_value()) return Duration::zero();
  const Duration since = clock_.Now() - looked_at_;
  return since > *look_limit_ ? since : Duration::zero();
}

void Subscription::Forget(std::optional<StreamId> accepted) {
  {
    MutexLock lock(mutex_);
    state_.Forget(accepted);
    Watch();
  }
  changed_.Notify();
}

std::optional<StreamId> Subscription::stream() const {
  MutexLock lock(mutex_);
  return state_.stream();
}

void Subscription::NoteOffered() {
  const std::optional<SyncTarget> target = state_.Target();
  if (!target.has_value()) return;
  if (!offered_.empty() && offered_.back().version == target->at()) return;
  if (offered_.size() == kOfferedMax) offered_.pop_front();
  offered_.push_back({.version = target->at(), .at = clock_.Now()});
}

std::optional<TimePoint> Subscription::OfferedAt(const VersionAt& version) const {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      offered_, [&](const PastTarget& offered) { return offered.version == version; });
  return found == offered_.end() ? std::nullopt : std::optional(found->at);
}

std::optional<SyncTarget> Subscription::Target(Offered least) const {
  MutexLock lock(mutex_);
  return state_.Target(least);
}

std::optional<SyncTarget> Subscription::Oldest() const {
  MutexLock lock(mutex_);
  return state_.Oldest();
}

std::optional<SyncTarget> Subscription::TargetAt(WeightVersion version, Offered least) const {
  MutexLock lock(mutex_);
  return state_.TargetAt(version, least);
}

void Subscription::AwaitTarget(WeightVersion version, Duration timeout) const {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!state_.TargetAt(version).has_value()) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return;
    announced_.WaitFor(mutex_, left);
  }
}

std::string Subscription::Unheard() const {
  std::string text;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    if (state_.senders()[i].trainer_rank.has_value()) continue;
    const char* why = state_.senders()[i].connected ? "connected, has no trainer" : "not connected";
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", addresses_[i],
                        last_errors_[i].empty() ? why : last_errors_[i]);
  }
  return text;
}

Result<LayoutSetPtr> Subscription::Layouts() const {
  MutexLock lock(mutex_);
  auto ranks = state_.Layouts();
  if (!ranks.has_value()) {
    return UnavailableError("the trainer's layout is not known: nothing heard from sender {}",
                            Unheard());
  }
  if (*ranks != set_from_) {
    set_ = LayoutSet::Create(*ranks);
    set_from_ = *std::move(ranks);
  }
  return set_;
}

std::string Subscription::MissingTarget() const {
  MutexLock lock(mutex_);
  const auto layouts = state_.Layouts();
  if (!layouts.has_value()) return fmt::format("nothing heard from sender {}", Unheard());
  const std::string& view = layouts->front()->view();
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const SubscriptionState::Sender& sender = state_.senders()[i];
    if (!sender.connected)
      return fmt::format("sender {} is not connected: {}", addresses_[i], last_errors_[i]);
    if (sender.trainer_rank.has_value() && sender.offers.empty()) {
      return view.empty()
                 ? fmt::format("sender {} has published no version yet", addresses_[i])
                 : fmt::format("sender {} has no version of view '{}' yet", addresses_[i], view);
    }
  }
  return "no version is offered by all trainer ranks";
}

Duration Subscription::WithoutSender() const {
  MutexLock lock(mutex_);
  return std::max(watch_.Without(clock_.Now()), Unseen());
}

std::string Subscription::MissingSenders() const {
  MutexLock lock(mutex_);
  if (Unseen() > Duration::zero()) {
    return fmt::format("no look at {}{} has returned for more than {} s: does its mount hang?",
                       addresses_[0], addresses_.size() > 1 ? " and the others" : "",
                       std::chrono::ceil<std::chrono::seconds>(*look_limit_).count());
  }
  std::string text;
  size_t count = 0;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const SubscriptionState::Sender& sender = state_.senders()[i];
    if (sender.connected && sender.trainer_rank.has_value() && !sender.lacks_cuts) continue;
    if (++count > limits::kSendersNamedMax) continue;
    std::string why = sender.refusal.empty() ? causes_[i] : sender.refusal;
    if (why.empty() && sender.lacks_cuts) why = "its layout lacks cuts that engines need";
    if (why.empty()) why = sender.connected ? "connected, has no trainer" : "not connected yet";
    text += fmt::format("{}sender {}: {}", count == 1 ? "" : "; ", addresses_[i], why);
  }
  if (count > limits::kSendersNamedMax) {
    text += fmt::format("; and {} more", count - limits::kSendersNamedMax);
  }
  return text.empty() ? "a trainer rank has no sender among those given" : text;
}

std::vector<Subscription::Peer> Subscription::Peers() const {
  MutexLock lock(mutex_);
  std::vector<Peer> peers;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const SubscriptionState::Sender& sender = state_.senders()[i];
    Peer peer{.address = addresses_[i],
              .connected = sender.connected,
              .trainer_rank = sender.trainer_rank,
              .newest = std::nullopt,
              .last_error = sender.refusal.empty() ? last_errors_[i] : sender.refusal};
    if (!sender.offers.empty()) peer.newest = sender.offers.back();
    peers.push_back(std::move(peer));
  }
  return peers;
}

void Subscription::SetLive(std::optional<VersionAt> live, std::vector<Digest> tokens) {
  MutexLock lock(mutex_);
  live_ = live;
  live_tokens_ = std::move(tokens);
  Watch();
}

std::optional<RankVersion> Subscription::LiveOfRank(TrainerRank rank) const {
  if (!live_.has_value() || rank.value() >= live_tokens_.size()) return std::nullopt;
  return RankVersion{.at = *live_, .state_token = live_tokens_[rank.value()]};
}

std::optional<RankVersion> Subscription::LiveOf(TrainerRank rank) const {
  MutexLock lock(mutex_);
  return LiveOfRank(rank);
}

std::optional<RankVersion> Subscription::LiveFor(SenderIndex sender) const {
  MutexLock lock(mutex_);
  const std::optional<TrainerRank> rank = state_.senders()[sender.value()].trainer_rank;
  return rank.has_value() ? LiveOfRank(*rank) : std::nullopt;
}

std::optional<VersionAt> Subscription::heard() const {
  MutexLock lock(mutex_);
  return heard_;
}

std::optional<VersionAt> Subscription::live() const {
  MutexLock lock(mutex_);
  return live_;
}

}  // namespace dws
