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
  accumulate_->OnConnect(peer);
  if (opened_.has_value()) Send(peer, accumulate_->wanted(peer));
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

void SenderNode::Send(TrainerRank to, decltype(TrainMessage::body) body) {
  const TrainMessage message{.job = world().job(), .from = rank(), .body = std::move(body)};
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
  std::visit([&](const auto& body) { Hear(message.from, body); }, message.body);
  Settle();
}

void SenderNode::Hear(TrainerRank from, const TrainDown& down) {
  if (from != TrainerRank(0)) return;
  const Status status = member_->OnDown(down);
  if (!status.ok()) world().See("a message of the leader is refused");
  Refused(status);
}

void SenderNode::Hear(TrainerRank from, const TrainReport& report) {
  if (leader_.has_value()) Refused(leader_->OnReport(from, report, world().Now()));
}

void SenderNode::Hear(TrainerRank from, const PieceOffer& offer) {
  const Result<AccumulateState::Answer> answer = accumulate_->OnOffer(from, offer);
  if (!answer.ok()) return Refused(answer.status());
  switch (*answer) {
    case AccumulateState::Answer::kQueued:
      return;
    case AccumulateState::Answer::kAcknowledge:
      world().See("a piece is offered again");
      return Send(from, accumulate_->acknowledged(from));
    case AccumulateState::Answer::kAskAgain:
      world().See("a piece is missing");
      return Send(from, accumulate_->wanted(from));
  }
}

void SenderNode::Hear(TrainerRank from, const PiecePull& pull) {
  const std::optional<PieceOffer> offer = outbox_->Find(from, pull);
  if (!offer.has_value()) return;
  Send(from, PieceBytes{.piece = pull,
                        .gradient = memory().outbox[offer->slot.value()].at(from.value())});
}

void SenderNode::Hear(TrainerRank from, const PieceBytes& bytes) { Add(from, bytes); }

void SenderNode::Hear(TrainerRank from, const PieceAck& ack) { Refused(outbox_->OnAck(from, ack)); }

void SenderNode::Hear(TrainerRank from, const PieceWanted& wanted) {
  Refused(outbox_->OnWanted(from, wanted));
}

void SenderNode::Hear(TrainerRank from, const PushFinish& finish) {
  const Status status = accumulate_->OnFinish(from, finish);
  if (!status.ok()) return Refused(status);
  Send(from, FinishAck{.attempt = finish.attempt});
}

void SenderNode::Hear(TrainerRank from, const FinishAck& ack) {
  Refused(outbox_->OnFinishAck(from, ack));
}

void SenderNode::SendDue() {
  const TimePoint now = world().Now();
  if (leader_.has_value()) {
    for (auto& [to, message] : leader_->Due(now)) Send(to, std::move(message));
  }
  for (uint32_t r = 0; r < world().ranks; ++r) {
    const TrainerRank owner(r);
    const OutboxState::Messages due = outbox_->Due(owner, now);
    for (const PieceOffer& offer : due.offers) Send(owner, offer);
    if (due.finish.has_value()) Send(owner, *due.finish);
  }
}

void SenderNode::Pull(TrainerRank from) {
  const std::optional<PieceOffer> offer = accumulate_->NextPull(from);
  if (!offer.has_value()) return;
  const PiecePull pull{.attempt = offer->attempt, .number = offer->number};
  Send(from, pull);
  Soon(kPullMax, [this, from, pull] {
    accumulate_->OnPullFailed(from, pull);
    Settle();
  });
}

void SenderNode::Add(TrainerRank from, const PieceBytes& bytes) {
  const AccumulateState::Add add = accumulate_->Begin(from, bytes.piece);
  if (add == AccumulateState::Add::kStale) return world().See("a piece comes twice");
  if (add == AccumulateState::Add::kBusy) {
    world().See("a unit is busy");
    return waiting_.emplace_back(from, bytes), void();
  }
  const UnitIndex unit = accumulate_->adding(from);
  const int64_t before = add == AccumulateState::Add::kStore ? 0 : memory().sums[unit.value()];
  Soon(1 + world().random.Below(kRoundTrip / 4), [this, from, bytes, unit, before] {
    memory().sums[unit.value()] = before + bytes.gradient;
    const bool told = accumulate_->Added(from, bytes.piece);
    if (told) Send(from, accumulate_->acknowledged(from));
    if (!told) world().See("an add ends after its attempt");
    const auto waiting = std::exchange(waiting_, {});
    for (const auto& [rank, piece] : waiting) Add(rank, piece);
    Settle();
  });
}

}  // namespace dws::sim
