#include "tests/simulation/receiver.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {
constexpr Time kDelayMin = kRoundTrip / 2;
constexpr Time kDelayMax = 2 * kRoundTrip;
constexpr Time kDigestTime = kRoundTrip / 4;
}  // namespace

Receiver::Receiver(World& world, uint32_t site, std::string name, Engine& engine, GroupPlace group)
    : Process(world, site, std::move(name)),
      grouped_(group.members != nullptr),
      group_(group),
      engine_(engine),
      disk_(*this) {
  if (world.options.mutation == Mutation::kDropFsync) disk_.DropSyncs();
}

void Receiver::OnStart() {
  subscription_.emplace(world().ranks, disk_.state().stream());
  links_.assign(world().ranks, nullptr);
  delays_.assign(world().ranks, kDelayMin);
  last_generation_ = world().events.now();  // above those of any earlier process
  retry_delay_ = kDelayMin;
  if (grouped_) {
    member_.emplace();
    if (group_.index == 0) {
      std::optional<VersionAt> decided;
      if (const auto& open = disk_.state().decided(); open.has_value()) {
        decided = VersionAt{open->stream, open->version};
        world().See("a leader starts with a decision open");
      }
      leader_.emplace(group_.members->size(), decided);
      member_links_.assign(group_.members->size(), nullptr);
    }
    ConnectToLeader();
  }
  for (uint32_t slot = 0; slot < world().ranks; ++slot) Connect(slot);
}

void Receiver::OnCrash() {
  disk_.OnCrash();
  subscription_.reset();
  links_.clear();
  attached_.reset();
  generation_.reset();
  ForgetLive();
  busy_ = kicked_ = staging_ = false;
  to_stage_.reset();
  ++attempt_;
  member_.reset();
  leader_.reset();
  leader_link_.reset();
  member_links_.clear();
  staged_.reset();
  engine_.OnReceiverGone();
}

std::optional<uint32_t> Receiver::SlotOf(ConnectionId connection) const {
  for (uint32_t slot = 0; slot < links_.size(); ++slot) {
    if (links_[slot] != nullptr && links_[slot]->id() == connection) return slot;
  }
  return std::nullopt;
}

bool Receiver::HasCommitted(const VersionAt& at) const {
  const auto highest = committed_.find(at.stream);
  return highest != committed_.end() && highest->second >= at.version;
}

void Receiver::Connect(uint32_t slot) {
  const Time delay = std::exchange(delays_[slot], std::min(delays_[slot] * 2, kDelayMax));
  After(delay, [this, slot] {
    Sender& sender = world().Route(slot);
    const bool answered = sender.up() && !world().network.Loses(*this, sender);
    if (!answered) return Connect(slot);
    const LinkPtr link = world().network.Connect(*this, sender);
    links_[slot] = link;
    link->on_closed[Link::kClient] = Alive([this, slot, id = link->id()] {
      if (SlotOf(id) == slot) OnClosed(slot);
    });
    const std::optional<VersionAt> have = live_.proved() ? live_.at : std::nullopt;
    link->Send(Link::kClient, [this, link, have] {
      static_cast<Sender&>(link->end(Link::kServer)).OnConnect(name(), link, have, *this);
    });
  });
}

void Receiver::OnClosed(uint32_t slot) {
  links_[slot].reset();
  subscription_->OnDisconnect(SenderIndex(slot));
  if (world().options.mutation != Mutation::kNeverReconnect) Connect(slot);
  Kick();
}

void Receiver::OnWelcome(uint32_t slot, const SenderWelcome& welcome) {
  if (!subscription_->senders()[slot].connected) subscription_->OnConnect(SenderIndex(slot));
  delays_[slot] = kDelayMin;
  const Status status = subscription_->OnWelcome(
      SenderIndex(slot), welcome, UnixTime(std::chrono::microseconds(world().events.now())));
  if (!status.ok()) world().See("an old stream is refused");
  if (!status.ok()) world().Trace("{} refuses sender {}: {}", name(), slot, Message(status));
  CatchUp(slot);
  Kick();
}

void Receiver::OnAnnounce(uint32_t slot, uint64_t nonce, const SenderAnnouncement& announcement) {
  (void)subscription_->OnAnnounce(SenderIndex(slot), nonce, announcement);
  Kick();
}

// Says again what is live: an acknowledgement may have been lost, or a restarted sender forgot it.
void Receiver::CatchUp(uint32_t slot) {
  if (!live_.proved()) return;
  const LinkPtr link = links_[slot];
  link->Send(Link::kClient, [this, link, at = *live_.at] {
    static_cast<Sender&>(link->end(Link::kServer)).OnCommitted(link->id(), at, *this);
  });
}

void Receiver::Tell(const SyncTarget& target,
                    std::function<void(Sender&, ConnectionId, Nonce)> what) {
  for (const SyncTarget::Rank& rank : target.ranks) {
    const LinkPtr link = links_[rank.sender.value()];
    if (link == nullptr) continue;
    link->Send(Link::kClient, [link, what, nonce = Nonce(rank.nonce)] {
      what(static_cast<Sender&>(link->end(Link::kServer)), link->id(), nonce);
    });
  }
}

void Receiver::OnAttach() {
  last_generation_ = std::max(last_generation_, world().events.now()) + 1;
  attached_ = Generation(last_generation_);
  world().Trace("{}: its engine attached, generation {}", name(), last_generation_);
  Kick();
}

void Receiver::OnEngineGone() {
  attached_.reset();
  Kick();
}

// Looks at what there is to do, a moment later: several changes are looked at together.
void Receiver::Kick() {
  if (busy_ || std::exchange(kicked_, true)) return;
  After(1, [this] {
    kicked_ = false;
    if (!busy_) Round();
  });
}

void Receiver::Round() {
  if (attached_ != generation_) {
    generation_ = attached_;
    attachment_ = engine_.attachment();
    ForgetLive();
    if (member_.has_value()) {
      member_->OnEngine(generation_);
      RunMember();
    }
  }
  const auto& stream = subscription_->stream();
  if (stream.has_value() && disk_.state().stream() != stream) return AcceptStream();
  if (leader_.has_value()) {
    const auto target = subscription_->Target();
    leader_->OnTarget(target.has_value() ? std::optional(target->at()) : std::nullopt);
    RunLeader();
  }
  if (!generation_.has_value() || !subscription_->Layouts().has_value()) return;
  if (!live_.known()) {
    busy_ = true;
    return After(kDigestTime, [this] {
      busy_ = false;
      if (attached_ == generation_) {
        for (uint32_t r = 0; r < world().ranks; ++r) {
          live_.ranks.push_back({.slices = engine_.ReadDigests(r)});
        }
      }
      Round();
    });
  }
  ReceiverView view{.live = live_.at, .drifted = live_.drifted};
  const std::optional<SyncTarget> target = subscription_->Target();
  if (target.has_value()) view.target = target->at();
  const ReceiverStep step = NextStep(view);
  // A member waits for its leader when that finds nothing: once is enough.
  if (step == ReceiverStep::kAdopt && !(grouped_ && adoption_tried_)) {
    busy_ = adoption_tried_ = true;
    return Adopt(*view.target, [this, target](const Status& status) {
      if (!status.ok() || live_.at.has_value() || grouped_) return Finish(status);
      Advance(*target);
    });
  }
  if (grouped_) {  // its leader picks the target
    if (to_stage_.has_value()) Act(*std::exchange(to_stage_, std::nullopt));
    return;
  }
  if (step == ReceiverStep::kAdopt || step == ReceiverStep::kAdvance) Advance(*target);
}

void Receiver::AcceptStream() {
  busy_ = true;
  disk_.Append(StreamAccepted{.stream = *subscription_->stream()},
               [this](const Status& status) { Finish(status); });
}

// Goes on with what memory may be, when it is exactly that.
void Receiver::Adopt(const VersionAt& target, Done done) {
  std::optional<VersionAt> intended;
  std::optional<VersionAt> committed;
  if (const auto& open = disk_.state().open_intent()) {
    intended = VersionAt{open->stream, open->target};
  }
  if (const auto& last = disk_.state().committed()) {
    committed = VersionAt{last->stream, last->version};
  }
  const std::optional<VersionAt> version = Adoptable(intended, committed, target);
  if (!version.has_value()) return done(OkStatus());
  const std::optional<SyncTarget> offered = subscription_->TargetAt(version->version);
  if (!offered.has_value()) return done(OkStatus());
  Prepare(*offered, Way::kDescription, [this, done](PreparedPtr prepared) {
    if (!prepared->status.ok()) {
      return done(absl::IsAborted(prepared->status) ? OkStatus() : prepared->status);
    }
    bool same = true;
    for (PreparedRank& rank : prepared->ranks) {
      if (world().options.mutation == Mutation::kTrustLedger) rank.full.clear();
      same &= rank.full.empty();
    }
    if (!same) return done(OkStatus());
    world().See("an engine keeps what it had");
    if (!grouped_) return Begin(prepared, true, [done](const Status& s, bool) { done(s); });
    Reach(*prepared);
    member_->OnProved(*generation_, prepared->target.at());
    RunMember();
    done(OkStatus());
  });
}

void Receiver::Advance(const SyncTarget& target) {
  busy_ = true;
  Prepare(target, Way::kDelta, [this](PreparedPtr prepared) {
    if (!prepared->status.ok()) return Finish(prepared->status);
    Begin(prepared, true, [this](const Status& status, bool) { Finish(status); });
  });
}

// The next round: at once, or in a while after an error.
void Receiver::Finish(const Status& status) {
  if (status.ok()) {
    retry_delay_ = kDelayMin;
    busy_ = false;
    return Kick();
  }
  world().Trace("{}: {}", name(), Message(status));
  const Time delay = std::exchange(retry_delay_, std::min(retry_delay_ * 2, kDelayMax));
  After(delay, [this] {
    busy_ = false;
    Kick();
  });
}

void Receiver::ForgetLive() {
  live_.Forget();
  adoption_tried_ = false;
}

// What is known of memory once it holds what was prepared.
void Receiver::Reach(const Prepared& prepared) {
  live_.Forget();
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PublishedState& published = prepared.ranks[r].published;
    LiveState::Rank rank{
        .slices = {}, .published = published.slices, .state_token = published.state_token};
    for (uint32_t s = 0; s < kSlices; ++s) {
      rank.slices.push_back(engine_.Holds(r, s)
                                ? SliceState{SliceState::Kind::kHeld, published.slices[s]}
                                : SliceState{});
    }
    live_.ranks.push_back(std::move(rank));
  }
  live_.at = prepared.target.at();
  WeightVersion& highest = committed_[live_.at->stream];
  highest = std::max(highest, live_.at->version);
}

}  // namespace dws::sim
