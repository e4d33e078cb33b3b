// A simulated receiver's network connections: its senders and its commit group.
#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "tests/common/delta/objects.h"
#include "tests/simulation/nodes/receiver_parts.h"
#include "tests/simulation/nodes/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr Time kAnswerMax = 4 * kRoundTrip;
constexpr Time kSliceTime = kRoundTrip / 10;  // to transfer one in full
constexpr Time kReconnectDelay = kRoundTrip / 2;

// Flips a bit of a transfer: anywhere, or in the frames, which are at its end.
void Corrupt(World& world, std::vector<std::byte>& bytes) {
  if (!world.random.Chance(world.corrupt_permille)) return;
  const size_t from =
      world.random.Chance(500) ? 0 : bytes.size() - std::min<size_t>(bytes.size(), 8);
  bytes[from + world.random.Below(bytes.size() - from)] ^= std::byte{64};
}

std::vector<RankSlice> MissingSlices(const FullAssembly& assembly) {
  std::vector<RankSlice> slices;
  for (const BlockRange& range : assembly.Missing()) slices.push_back(range.slice);
  return slices;
}

BlockRange WholeSlice(RankSlice slice) {
  return {.slice = slice, .first_block = 0, .block_count = 1};
}

std::string NameOf(const GroupDown& message) {
  if (const auto* prepare = std::get_if<GroupPrepare>(&message.body)) {
    return fmt::format("PREPARE {}:{}", prepare->target.stream.incarnation,
                       prepare->target.version.value());
  }
  static constexpr const char* kNames[] = {"PREPARE", "COMMIT", "ABORT", "RESUME", "END"};
  return kNames[message.body.index()];
}
std::string NameOf(const GroupUp& message) {
  if (const auto* unable = std::get_if<GroupUnable>(&message)) return "UNABLE: " + unable->reason;
  static constexpr const char* kNames[] = {"REPORT", "STAGED", "UNABLE", "COMMITTED", "SHARE"};
  return kNames[message.index()];
}

Time TransferTime(const std::vector<Slice>& slices) { return slices.size() * kSliceTime; }
template <typename T>
Time TransferTime(const T&) {
  return 0;
}

}  // namespace

std::optional<uint32_t> Receiver::SlotOf(ConnectionId connection) const {
  for (uint32_t slot = 0; slot < links_.size(); ++slot) {
    if (links_[slot] != nullptr && links_[slot]->id() == connection) return slot;
  }
  return std::nullopt;
}

void Receiver::Connect(uint32_t slot) {
  const Time delay =
      std::exchange(delays_[slot], std::min(delays_[slot] * 2, Micros(limits::kReconnectDelayMax)));
  After(delay, [this, slot] {
    Sender& sender = world().Route(slot);
    const bool answered = sender.up() && !world().network.Loses(*this, sender);
    if (!answered) return Connect(slot);
    const LinkPtr link = world().network.Connect(*this, sender);
    links_[slot] = link;
    link->on_closed[Link::kClient] = Alive([this, slot, id = link->id()] {
      if (SlotOf(id) == slot) OnClosed(slot);
    });
    link->Send(Link::kClient, [this, link] {
      static_cast<Sender&>(link->end(Link::kServer)).OnConnect(name(), link, *this);
    });
  });
}

void Receiver::OnClosed(uint32_t slot) {
  links_[slot].reset();
  world().Trace("{} loses sender {}", name(), slot);
  daemon_->subscription.OnDisconnect(SenderIndex(slot), UnavailableError("the link broke"));
  if (world().options.mutation != Mutation::kNeverReconnect) Connect(slot);
  Kick();
}

void Receiver::OnWelcome(uint32_t slot, const SenderWelcome& welcome) {
  if (!daemon_->subscription.Peers()[slot].connected) {
    daemon_->subscription.OnConnect(SenderIndex(slot));
  }
  delays_[slot] = Micros(limits::kReconnectDelayMin);
  const Status status = daemon_->subscription.OnWelcome(SenderIndex(slot), welcome);
  if (!status.ok()) world().See("an old stream is refused");
  if (!status.ok()) world().Trace("{} refuses sender {}: {}", name(), slot, Message(status));
  world().Trace("{} is welcomed by sender {}", name(), slot);
  CatchUp(slot);
  Kick();
}

void Receiver::OnAnnounce(uint32_t slot, uint64_t nonce, const SenderAnnouncement& announcement) {
  (void)daemon_->subscription.OnAnnounce(SenderIndex(slot), nonce, announcement);
  Kick();
}

// Like SyncLink::CatchUp: an acknowledgement may be lost, or forgotten by a restarted sender.
void Receiver::CatchUp(uint32_t slot) {
  const std::optional<RankVersion> live = daemon_->subscription.LiveFor(SenderIndex(slot));
  if (!live.has_value()) return;
  const LinkPtr link = links_[slot];
  link->Send(Link::kClient, [this, link, live = *live] {
    static_cast<Sender&>(link->end(Link::kServer)).OnCommitted(link->id(), live, *this);
  });
}

void Receiver::Tell(const SyncTarget& target, TrainerRank rank,
                    std::function<void(Sender&, ConnectionId, Nonce)> what) {
  const SyncTarget::Rank& asked = target.ranks[rank.value()];
  const LinkPtr link = links_[asked.sender.value()];
  if (link == nullptr) return;
  link->Send(Link::kClient, [link, what = std::move(what), nonce = Nonce(asked.nonce)] {
    what(static_cast<Sender&>(link->end(Link::kServer)), link->id(), nonce);
  });
}

// A reply that does not arrive is UNAVAILABLE.
template <typename T>
std::shared_ptr<Receiver::Transfer<T>> Receiver::Begin(const SyncTarget& target, TrainerRank rank,
                                                       const Question<T>& question) {
  const auto transfer = std::make_shared<Transfer<T>>();
  const LinkPtr link = links_[target.ranks[rank.value()].sender.value()];
  if (link == nullptr) {
    transfer->arrived = UnavailableError("the sender is not connected");
    return transfer;
  }
  const auto arrive = [transfer](Result<T> result) {
    if (transfer->arrived.has_value()) return;
    transfer->arrived = std::move(result);
    if (transfer->waiter) transfer->waiter(true);
  };
  After(kAnswerMax, [arrive] { arrive(UnavailableError("no answer")); });
  Process& process = link->end(Link::kServer);
  const auto reply = [this, &process, arrive](Result<T> result) {
    const Time time = result.ok() ? TransferTime(*result) : 0;
    world().network.Datagram(
        process, *this, [arrive, result = std::move(result)] { arrive(result); }, time);
  };
  world().network.Datagram(*this, process, [&process, question, reply] {
    if (process.up()) question(static_cast<Sender&>(process), reply);
  });
  return transfer;
}

template <typename T>
Result<T> Receiver::Finish(std::shared_ptr<Transfer<T>> transfer) {
  if (!transfer->arrived.has_value()) {
    Await<bool>([&](std::function<void(bool)> done) { transfer->waiter = std::move(done); });
  }
  return *std::move(transfer->arrived);
}

template <typename T>
Result<T> Receiver::Ask(const SyncTarget& target, TrainerRank rank, const Question<T>& question,
                        Transfers<T>& all) {
  if (rank.value() == 0) {
    all = {.at = target.at(), .by_rank = {}};
    for (uint32_t r = 0; r < target.ranks.size(); ++r) {
      all.by_rank.push_back(Begin<T>(target, TrainerRank(r), question));
    }
  }
  std::shared_ptr<Transfer<T>> own;
  if (all.at == target.at() && rank.value() < all.by_rank.size()) {
    own = std::exchange(all.by_rank[rank.value()], nullptr);
  }
  return Finish<T>(own != nullptr ? own : Begin<T>(target, rank, question));
}

Result<DeltaRead> Receiver::ReadDelta(const Piece& piece, const DeltaWant& want,
                                      const Spool::Options& spool_options) {
  const auto& [target, rank] = piece;
  fetched_ = true;
  if (rank.value() == 0) fetched_full_ = false;
  world().Trace("{} fetches {}:{} from {}", name(), target.stream.incarnation,
                target.version.value(), want.base.value());
  auto object = Ask<std::vector<std::byte>>(
      target, rank,
      [at = target.at(), base = want.base](Sender& sender, auto reply) {
        reply(sender.Object(at.stream, base, at.version));
      },
      objects_);
  DWS_RETURN_IF_ERROR(object.status());
  *object = samples::PartOf(*object, *target.ranks[rank.value()].layout, want.slices);
  Corrupt(world(), *object);
  Spool::Options options = spool_options;
  options.size_bytes_expected = object->size();
  Spool spool(std::move(options));
  DWS_RETURN_IF_ERROR(spool.Append(*object));
  return DeltaRead::Object(std::move(spool));
}

// One small message, which gRPC protects: it arrives unchanged or not at all.
Result<Description> Receiver::Describe(const SyncTarget& target, TrainerRank rank) {
  if (rank.value() == 0) fetched_full_ = false;
  return Ask<PublishedState>(
      target, rank, [at = target.at()](Sender& sender, auto reply) { reply(sender.Describe(at)); },
      descriptions_);
}

Result<std::vector<Slice>> Receiver::ReadSlices(const Piece& piece,
                                                const std::vector<RankSlice>& slices) {
  fetched_ = fetched_full_ = true;
  return Finish<std::vector<Slice>>(Begin<std::vector<Slice>>(
      piece.target, piece.rank, [at = piece.target.at(), slices](Sender& sender, auto reply) {
        sender.ReadFull(at, slices, reply);
      }));
}

Status Receiver::ReadFull(const Piece& piece, FullAssembly& assembly) {
  const std::vector<RankSlice> slices = MissingSlices(assembly);
  DWS_ASSIGN_OR_RETURN(const std::vector<Slice> read, ReadSlices(piece, slices));
  for (size_t i = 0; i < slices.size(); ++i) {
    std::vector<std::byte> bytes = BytesOf(read[i]);
    Corrupt(world(), bytes);
    DWS_RETURN_IF_ERROR(assembly.Take(WholeSlice(slices[i]), bytes));
  }
  return OkStatus();
}

// By the seed it works, works now and then while there are faults, or never works.
Status Receiver::Beside::Fault(const char* what) {
  World& world = owner_.world();
  if (world.beside == World::Beside::kNone) return AbortedError("there is none");
  if (world.beside == World::Beside::kDead) return UnavailableError("it is dead");
  if (!world.faulty || world.random.Chance(500)) return OkStatus();
  world.See(what);
  const uint64_t kind = world.random.Below(4);
  if (kind == 0) return UnavailableError("it is away");
  if (kind == 1) return DataLossError("it is damaged");
  owner_.Sleep(world.random.Below(3 * kRoundTrip) + 1);
  return kind == 2 ? DeadlineExceededError("it is slow") : OkStatus();
}

Result<DeltaRead> Receiver::Beside::ReadDelta(const Piece& piece, const DeltaWant& want,
                                              const Spool::Options& spool) {
  DWS_RETURN_IF_ERROR(Fault("a source of deltas fails"));
  Random& random = owner_.world().random;
  if (random.Chance(200)) return DeltaRead::Without("it does not have it");
  DWS_ASSIGN_OR_RETURN(DeltaRead read, owner_.ReadDelta(piece, want, spool));
  if (owner_.world().faulty && random.Chance(200)) return UnavailableError("it broke at the end");
  return read;
}

Status Receiver::Beside::ReadFull(const Piece& piece, FullAssembly& assembly) {
  DWS_RETURN_IF_ERROR(Fault("a source of full tensors fails"));
  World& world = owner_.world();
  const std::vector<RankSlice> slices = MissingSlices(assembly);
  DWS_ASSIGN_OR_RETURN(const std::vector<Slice> read, owner_.ReadSlices(piece, slices));
  for (size_t i = 0; i < slices.size(); ++i) {
    std::vector<std::byte> bytes = BytesOf(read[i]);
    if (world.faulty && world.random.Chance(200)) {
      world.See("a source lies");
      bytes[world.random.Below(bytes.size())] ^= std::byte{1};
    }
    DWS_RETURN_IF_ERROR(assembly.Take(WholeSlice(slices[i]), bytes));
    if (!world.faulty || !world.random.Chance(200)) continue;
    world.See("a source ends in the middle");
    return world.random.Chance(500) ? OkStatus() : UnavailableError("it broke in the middle");
  }
  return OkStatus();
}

void Receiver::Staged(const SyncTarget& target, TrainerRank rank) {
  Tell(target, rank, [at = target.at()](Sender& sender, ConnectionId link, Nonce nonce) {
    sender.OnStaged(link, nonce, at);
  });
}

void Receiver::Committed(const SyncTarget& target, TrainerRank rank,
                         const CommittedReport& report) {
  NoteCommitted(target.at());
  Tell(target, rank,
       [this, version = RankVersion{.at = target.at(), .state_token = report.state_token}](
           Sender& sender, ConnectionId link, Nonce) { sender.OnCommitted(link, version, *this); });
}

void Receiver::Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) {
  const bool full = Message(rejection.reason).find("full tensor") != std::string_view::npos;
  if (full) {
    world().See("a full tensor is rejected");
  } else if (!rejection.slices.empty()) {
    world().See("a slice of a delta is rejected");
  }
  Tell(target, rank, [at = target.at()](Sender& sender, ConnectionId link, Nonce nonce) {
    sender.OnNack(link, nonce, at);
  });
}

// The checker compares the senders' state with this.
void Receiver::NoteCommitted(const VersionAt& at) {
  WeightVersion& highest = committed_[at.stream];
  highest = std::max(highest, at.version);
  if (!engine_.up() || engine_.attachment() != written_to_) return;  // its memory no longer exists
  const auto* published = world().truth.Find(at);
  if (published != nullptr && engine_.Equals(*published)) return;
  world().Violate("{} says that it committed {}:{}, and its engine does not hold that", name(),
                  at.stream.incarnation, at.version.value());
}

void Receiver::MemberWire::Welcome() {
  link_->Send(Link::kServer, [&member = member_, link = link_] { member.OnLeaderWelcome(link); });
}

void Receiver::MemberWire::Send(const GroupDown& message) {
  World& world = member_.world();
  if (std::holds_alternative<GroupCommit>(message.body)) world.See("a group commits");
  if (std::holds_alternative<GroupAbort>(message.body)) world.See("a group aborts");
  world.Trace("{} is told {} ({})", member_.name(), NameOf(message), message.nonce.value());
  link_->Send(Link::kServer,
              [&member = member_, link = link_, message] { member.OnDown(link, message); });
}

void Receiver::ConnectToLeader() {
  After(kReconnectDelay, [this] {
    Receiver& leader = *members_->front();
    if (!leader.up() || world().network.Loses(*this, leader)) return ConnectToLeader();
    const LinkPtr link = world().network.Connect(*this, leader);
    leader_link_ = link;
    link->on_closed[Link::kClient] = Alive([this, id = link->id()] {
      if (leader_link_ == nullptr || leader_link_->id() != id) return;
      leader_link_.reset();
      daemon_->group->OnLeaderDisconnect(std::exchange(leader_connection_, std::nullopt),
                                         UnavailableError("the link broke"));
      Kick();
      ConnectToLeader();
    });
    link->Send(Link::kClient, [this, &leader, link] { leader.OnMember(*this, link); });
  });
}

void Receiver::OnMember(Receiver& member, const LinkPtr& link) {
  if (wires_[member.index_] != nullptr && wires_[member.index_]->link() == link)
    return;  // repeated
  const auto wire = std::make_shared<MemberWire>(member, link);
  wires_[member.index_] = wire;
  const Result<ConnectionId> id =
      daemon_->group->OnMemberConnect(member.index_, member.name(), wire);
  if (!id.ok()) return link->Close(Link::kServer);
  wire->id = *id;
  link->on_closed[Link::kServer] = Alive([this, index = member.index_, id = *id] {
    const std::optional<GroupLeaderState::Round> round = daemon_->group->view().round;
    if (round.has_value() && round->phase == GroupLeaderState::Phase::kCommitting) {
      world().See("a group loses a member in a COMMIT");
    }
    daemon_->group->OnMemberDisconnect(index, id);
    Kick();
  });
  Kick();
}

void Receiver::OnLeaderWelcome(const LinkPtr& link) {
  if (leader_link_ != link || leader_connection_.has_value()) return;
  leader_connection_ = daemon_->group->OnLeaderConnect([this, link](const GroupUp& message) {
    Receiver& leader = *members_->front();
    link->Send(Link::kClient,
               [this, &leader, link, message] { leader.OnUp(*this, link, message); });
  });
  Kick();
}

void Receiver::OnUp(Receiver& member, const LinkPtr& link, const GroupUp& message) {
  const std::shared_ptr<MemberWire> wire = wires_[member.index_];
  if (wire == nullptr || wire->link() != link || !wire->id.has_value()) return;
  world().Trace("{} says {}", member.name(), NameOf(message));
  daemon_->group->OnUp(member.index_, *wire->id, message);
  Kick();
}

void Receiver::OnDown(const LinkPtr& link, const GroupDown& message) {
  if (leader_link_ != link || !leader_connection_.has_value()) return;
  daemon_->group->OnDown(*leader_connection_, message);
  Kick();
}

void Receiver::TickGroup() {
  daemon_->group->Tick();
  Kick();
  After(Micros(limits::kTick), [this] { TickGroup(); });
}

}  // namespace dws::sim
