// The messages between senders. One that arrives damaged is dropped, since its checksum tells; one
// of another job is refused; any may come late, twice or out of order, also from a process that has
// died.
#include "tests/simulation/train/sender_node.h"
#include "tests/simulation/train/train_world.h"

namespace dws::sim {
namespace {
constexpr Time kPullMax = 6 * kRoundTrip;  // then a pull is tried again
constexpr Time kLateMax = 40 * kRoundTrip;
}  // namespace

void SenderNode::Dial(TrainerRank peer) {
  if (links_[peer.value()] != nullptr) return;
  SenderNode& other = Peer(peer);
  const LinkPtr link = world().network.Connect(*this, other);
  links_[peer.value()] = link;
  link->on_closed[Link::kClient] = Alive([this, peer, id = link->id()] { OnClosed(peer, id); });
  link->Send(Link::kClient, [&other, from = rank(), link] {
    if (!other.up()) return link->Close(Link::kServer);
    other.Run([&other, from, link] { other.OnAccept(from, link); });
  });
  OnConnected(peer);
}

void SenderNode::OnAccept(TrainerRank peer, const LinkPtr& link) {
  LinkPtr& known = links_[peer.value()];
  if (known != nullptr && known->id() > link->id()) return link->Close(Link::kServer);
  if (known != nullptr && known != link) known->Close(Link::kServer);
  known = link;
  link->on_closed[Link::kServer] = Alive([this, peer, id = link->id()] { OnClosed(peer, id); });
  OnConnected(peer);
  Settle();
}

void SenderNode::OnConnected(TrainerRank peer) {
  outbox_->OnConnect(peer);
  own_->state.OnConnect(peer);
  if (opened_.has_value()) Send(peer, own_->state.wanted(peer));
  for (auto& [owner, sums] : combined_) {
    sums.state.OnConnect(peer);
    if (sums.active) Send(peer, sums.state.wanted(peer), owner);
  }
}

void SenderNode::OnClosed(TrainerRank peer, ConnectionId link) {
  Run([this, peer, link] {
    LinkPtr& known = links_[peer.value()];
    if (known == nullptr || known->id() != link) return;
    known = nullptr;
    if (leader_.has_value()) leader_->OnDisconnect(peer, world().Now());
    Settle();
  });
}

void SenderNode::Send(TrainerRank to, decltype(TrainMessage::body) body,
                      std::optional<TrainerRank> combined_for) {
  const TrainMessage message{
      .job = world().job(), .from = rank(), .body = std::move(body), .combined_for = combined_for};
  SenderNode& other = Peer(to);
  const auto arrive = [&other, message] {
    other.Run([&other, message] { other.Receive(message); });
  };
  if (to == rank()) return Soon(1, arrive);
  Random& random = world().random;
  // A copy that the network keeps for long, whatever becomes of the connection and the processes.
  const bool decides = std::holds_alternative<TrainDown>(message.body);
  if (world().network.faults.repeats && random.Chance(decides ? 200 : 20)) {
    world().events.After(random.Below(kLateMax), arrive);
  }
  if (random.Chance(world().damage_permille)) {
    world().See("a message is damaged");
    if (world().network.faults.repeats && random.Chance(500)) {
      world().events.After(random.Below(kLateMax), arrive);  // or late only
    }
    return;
  }
  const LinkPtr& link = links_[to.value()];
  if (link == nullptr) return;
  link->Send(to < rank() ? Link::kClient : Link::kServer, arrive);
}

void SenderNode::Refused(const Status& status) {
  if (absl::IsInternal(status) || status.ok()) return;
  world().Trace("{} refuses: {}", name(), Message(status));
  if (absl::IsAborted(status)) world().See("a message of an attempt that is over");
}

void SenderNode::Receive(const TrainMessage& message) {
  const Status status = CheckJob(world().job(), message.job, message.from);
  if (!status.ok()) {
    world().See("a message of another incarnation is refused");
    return Refused(status);
  }
  std::visit([&](const auto& body) { Hear(message, body); }, message.body);
  Settle();
}

PieceSums* SenderNode::SumsOf(const TrainMessage& message) {
  if (!message.combined_for.has_value()) return &*own_;
  const auto found = combined_.find(*message.combined_for);
  return found == combined_.end() ? nullptr : &found->second;
}

namespace {

// The route of the pieces that a message is about; its sender adds them.
PieceRoute RouteOf(const TrainMessage& message) {
  return {.to = message.from, .owner = message.combined_for.value_or(message.from)};
}

}  // namespace

void SenderNode::Hear(const TrainMessage& message, const TrainDown& down) {
  if (message.from != TrainerRank(0)) return;
  const Status status = member_->OnDown(down);
  if (!status.ok()) world().See("a message of the leader is refused");
  Refused(status);
}

void SenderNode::Hear(const TrainMessage& message, const TrainReport& report) {
  if (leader_.has_value()) Refused(leader_->OnReport(message.from, report, world().Now()));
}

void SenderNode::Hear(const TrainMessage& message, const PieceOffer& offer) {
  PieceSums* const sums = SumsOf(message);
  if (sums == nullptr) return;
  const TrainerRank from = message.from;
  const Result<AccumulateState::Answer> answer = sums->state.OnOffer(from, offer);
  if (!answer.ok()) return Refused(answer.status());
  switch (*answer) {
    case AccumulateState::Answer::kQueued:
      return;
    case AccumulateState::Answer::kAcknowledge:
      world().See("a piece is offered again");
      return Send(from, sums->state.acknowledged(from), sums->combined_for);
    case AccumulateState::Answer::kAskAgain:
      world().See("a piece is missing");
      return Send(from, sums->state.wanted(from), sums->combined_for);
  }
}

void SenderNode::Hear(const TrainMessage& message, const PiecePull& pull) {
  const PieceRoute route = RouteOf(message);
  const std::optional<OutboxState::Item> item = outbox_->Find(route, pull);
  if (!item.has_value()) return;
  const int64_t gradient = item->push > 0
                               ? memory().outbox[item->slot.value()].at(route.owner.value())
                               : combined_.at(route.owner).combined[item->unit.value()];
  Send(message.from, PieceBytes{.piece = pull, .gradient = gradient}, message.combined_for);
}

void SenderNode::Hear(const TrainMessage& message, const PieceBytes& bytes) {
  if (PieceSums* const sums = SumsOf(message)) Add(*sums, message.from, bytes);
}

void SenderNode::Hear(const TrainMessage& message, const PieceAck& ack) {
  Refused(outbox_->OnAck(RouteOf(message), ack).status());
}

void SenderNode::Hear(const TrainMessage& message, const PieceWanted& wanted) {
  Refused(outbox_->OnWanted(RouteOf(message), wanted));
}

void SenderNode::Hear(const TrainMessage& message, const PushFinish& finish) {
  PieceSums* const sums = SumsOf(message);
  if (sums == nullptr) return;
  const Status status = sums->state.OnFinish(message.from, finish);
  if (!status.ok()) return Refused(status);
  Send(message.from, FinishAck{.attempt = finish.attempt}, sums->combined_for);
}

void SenderNode::Hear(const TrainMessage& message, const FinishAck& ack) {
  Refused(outbox_->OnFinishAck(RouteOf(message), ack));
}

void SenderNode::SendDue() {
  const TimePoint now = world().Now();
  if (leader_.has_value()) {
    for (auto& [to, message] : leader_->Due(now)) Send(to, std::move(message));
  }
  for (const PieceRoute& route : outbox_->routes()) {
    std::optional<TrainerRank> combined_for;
    if (route.to != route.owner) combined_for = route.owner;
    const OutboxState::Messages due = outbox_->Due(route, now);
    for (const PieceOffer& offer : due.offers) Send(route.to, offer, combined_for);
    if (due.finish.has_value()) Send(route.to, *due.finish, combined_for);
  }
}

void SenderNode::Pull(PieceSums& sums, TrainerRank from) {
  const std::optional<PieceOffer> offer = sums.state.NextPull(from);
  if (!offer.has_value()) return;
  const PiecePull pull{.attempt = offer->attempt, .number = offer->number};
  Send(from, pull, sums.combined_for);
  Soon(kPullMax, [this, &sums, from, pull] {
    sums.state.OnPullFailed(from, pull);
    Settle();
  });
}

Shard& SenderNode::ShardOf(PieceSums& sums) {
  return sums.combined_for.has_value() ? sums.combined : memory().sums;
}

void SenderNode::Add(PieceSums& sums, TrainerRank from, const PieceBytes& bytes) {
  const AccumulateState::Add add = sums.state.Begin(from, bytes.piece);
  if (add == AccumulateState::Add::kStale) return world().See("a piece comes twice");
  if (add == AccumulateState::Add::kBusy) {
    world().See("a unit is busy");
    return sums.waiting.emplace_back(from, bytes), void();
  }
  const UnitIndex unit = sums.state.adding(from);
  const int64_t before = add == AccumulateState::Add::kStore ? 0 : ShardOf(sums)[unit.value()];
  Soon(1 + world().random.Below(kRoundTrip / 4), [this, &sums, from, bytes, unit, before] {
    ShardOf(sums)[unit.value()] = before + bytes.gradient;
    const bool told = sums.state.Added(from, bytes.piece);
    if (told) Send(from, sums.state.acknowledged(from), sums.combined_for);
    if (!told) world().See("an add ends after its attempt");
    const auto waiting = std::exchange(sums.waiting, {});
    for (const auto& [rank, piece] : waiting) Add(sums, rank, piece);
    Settle();
  });
}

}  // namespace dws::sim
