#include "tests/simulation/nodes/sender.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/nodes/receiver.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {
constexpr size_t kSealingMax = 2;
constexpr Time kRetryDelay = kRoundTrip / 2;
constexpr Time kSliceReadTime = kRoundTrip / 10;
constexpr uint64_t kBytesMaxOfAVersion = 8 + kSlices * kSliceBytes;
}  // namespace

struct Sender::FullRead {
  VersionAt at;
  std::vector<RankSlice> slices;
  FullDone done;
  std::vector<Slice> read;
  std::vector<Delta> chain;  // the versions after `at` that were captured during the read
  WeightVersion reached;
};

void Sender::OnCrash() {
  hub_ = {};
  peers_.clear();
  state_.reset();
  session_.reset();
  disk_.OnCrash();
}

Status Sender::Register(const StreamId& stream, std::function<void(uint64_t session)> done) {
  DWS_RETURN_IF_ERROR(CheckStream(disk_.state().stream(), stream));
  const uint64_t session = ++last_session_;
  if (state_.has_value() && state_->stream == stream) {
    session_ = session;
    done(session);
    return OkStatus();
  }
  session_.reset();
  const bool same = disk_.state().stream() == stream;
  // At least the clock's value, so that epochs grow even if a ledger was lost.
  const RankEpoch epoch(
      std::max(world().events.now(), same ? disk_.state().rank_epoch().value() + 1 : 1));
  disk_.Append(StreamOpened{.stream = stream, .rank_epoch = epoch}, [this, stream, epoch, session,
                                                                     done](const Status& status) {
    if (!status.ok() || session != last_session_) return;  // the trainer tries again
    const size_t versions_max =
        world().options.mutation == Mutation::kRetainEverything ? 1000 : world().versions_max;
    state_ = State{.stream = stream,
                   .epoch = epoch,
                   .chain = RetainedChain(versions_max * kBytesMaxOfAVersion, versions_max)};
    session_ = session;
    hub_.StartStream(stream);
    world().Trace("{} serves stream {} in epoch {}", name(), stream.incarnation, epoch.value());
    for (const auto& [connection, peer] : peers_) Welcome(connection);
    done(session);
  });
  return OkStatus();
}

Status Sender::Publish(uint64_t session, WeightVersion version, const RankWeights& weights) {
  if (!HasSession(session)) return FailedPreconditionError("register first");
  State& state = *state_;
  const WeightVersion last = std::max(state.captured.value_or(WeightVersion(0)),
                                      disk_.state().last_version().value_or(WeightVersion(0)));
  if (version <= last) return FailedPreconditionError("version does not increase");
  if (state.sealing.size() >= kSealingMax) return ResourceExhaustedError("versions pile up");
  Retained sealed{.version = version,
                  .base = state.captured,
                  .delta = {},
                  .weights = weights,
                  .after = DigestsOf(weights)};
  const VersionAt at{.stream = state.stream, .version = version};
  if (sealed.base.has_value()) {
    sealed.delta = Diff(at, rank_, *sealed.base, state.snapshot, weights);
  }
  state.captured = version;
  state.snapshot = weights;
  world().truth.Capture(at, rank_, world().ranks, weights);
  state.sealing.push_back(std::move(sealed));
  if (state.sealing.size() == 1) RecordNext();
  return OkStatus();
}

// Records one version after the other, durably before announcing it; a full disk blocks the queue.
void Sender::RecordNext() {
  const Retained& next = state_->sealing.front();
  const VersionPublished record{.stream = state_->stream,
                                .version = next.version,
                                .base = next.base,
                                .state_token = StateToken(next.after)};
  disk_.Append(record, [this, stream = state_->stream](const Status& status) {
    const auto current = [this, stream] { return state_.has_value() && state_->stream == stream; };
    if (!current()) return;
    if (!status.ok()) {
      return After(kRetryDelay, [this, current] {
        if (current()) RecordNext();
      });
    }
    Retained sealed = std::move(state_->sealing.front());
    state_->sealing.pop_front();
    Retain(std::move(sealed));
    if (!state_->sealing.empty()) RecordNext();
  });
}

void Sender::Retain(Retained version) {
  State& state = *state_;
  const uint64_t bytes = version.base.has_value() ? version.delta.bytes() : 0;
  size_t gone = state.chain.Append(version.version, version.base, bytes);
  world().Trace("{} publishes {}:{}", name(), state.stream.incarnation, version.version.value());
  state.log.push_back(std::move(version));
  for (; gone > 0; --gone) state.log.pop_front();
  if (state.log.size() > world().versions_max) {
    world().Violate("{} retains {} versions, its cap is {}", name(), state.log.size(),
                    world().versions_max);
  }
  for (const auto& [connection, peer] : peers_) Announce(connection);
}

void Sender::OnConnect(const std::string& receiver_id, const LinkPtr& link, Receiver& receiver) {
  if (peers_.contains(link->id())) return;  // repeated
  const auto fenced = hub_.Connect(receiver_id, link->id());
  if (!fenced.ok()) return link->Close(Link::kServer);
  if (fenced->has_value()) {
    peers_.at(**fenced).link->Close(Link::kServer);
    peers_.erase(**fenced);
  }
  const ConnectionId id = link->id();
  peers_[id] = {.link = link, .receiver = &receiver};
  link->on_closed[Link::kServer] = Alive([this, id] {
    hub_.Disconnect(id);
    peers_.erase(id);
  });
  if (state_.has_value()) Welcome(id);
}

void Sender::Say(ConnectionId connection, std::function<void(Receiver&, uint32_t slot)> what) {
  const auto peer = peers_.find(connection);
  if (peer == peers_.end()) return;
  Receiver* receiver = peer->second.receiver;
  peer->second.link->Send(Link::kServer, [receiver, connection, what = std::move(what)] {
    const std::optional<uint32_t> slot = receiver->SlotOf(connection);
    if (slot.has_value()) what(*receiver, *slot);
  });
}

void Sender::Welcome(ConnectionId connection) {
  hub_.NextNonce(connection, false);
  SenderWelcome welcome{.stream = state_->stream,
                        .trainer_rank = TrainerRank(rank_),
                        .world_size = world().ranks,
                        .rank_epoch = state_->epoch,
                        .layout = LayoutOf(rank_)};
  Say(connection,
      [welcome](Receiver& receiver, uint32_t slot) { receiver.OnWelcome(slot, welcome); });
  Announce(connection);
}

void Sender::Announce(ConnectionId connection) {
  SenderAnnouncement announcement{.stream = state_->stream, .rank_epoch = state_->epoch};
  for (const Retained& version : state_->log) announcement.versions.push_back(version.version);
  if (!state_->log.empty()) announcement.newest_token = StateToken(state_->log.back().after);
  const Nonce nonce = hub_.NextNonce(connection, true);
  Say(connection, [announcement, nonce](Receiver& receiver, uint32_t slot) {
    receiver.OnAnnounce(slot, nonce.value(), announcement);
  });
}

void Sender::OnStaged(ConnectionId connection, Nonce nonce, const VersionAt& at) {
  hub_.OnStaged(connection, nonce, at.stream, at.version);
}

void Sender::OnCommitted(ConnectionId connection, const RankVersion& version, Receiver& receiver) {
  const VersionAt& at = version.at;
  const AcknowledgedCommit report{.version = at.version, .state_token = version.state_token};
  if (!hub_.OnCommitted(connection, at.stream, report, TimePoint())) return;
  if (!receiver.HasCommitted(at)) {
    world().Violate("{} believes that {} committed {}:{}", name(), receiver.name(),
                    at.stream.incarnation, at.version.value());
  }
}

void Sender::OnNack(ConnectionId connection, Nonce nonce, const VersionAt& at) {
  hub_.OnNack(connection, nonce, at.stream, "rejected");
}

Status Sender::CheckStreamOf(const StreamId& stream) const {
  if (state_.has_value() && state_->stream == stream) return OkStatus();
  return AbortedError("the stream is over");
}

const Sender::Retained* Sender::Find(WeightVersion version) const {
  for (const Retained& retained : state_->log) {
    if (retained.version == version) return &retained;
  }
  return nullptr;
}

Result<std::vector<std::byte>> Sender::Object(const StreamId& stream, WeightVersion base,
                                              WeightVersion version) {
  DWS_RETURN_IF_ERROR(CheckStreamOf(stream));
  DWS_ASSIGN_OR_RETURN(const RetainedChain::Range range, state_->chain.Lead(base, version));
  if (range.count > 1) world().See("a squash is served");
  std::vector<const Delta*> chain;
  for (size_t i = 0; i < range.count; ++i) {
    chain.push_back(&state_->log[range.first + i].delta);
  }
  return ObjectOf(Squash(chain), Find(version)->weights);
}

Result<PublishedState> Sender::Describe(const VersionAt& at) {
  DWS_RETURN_IF_ERROR(CheckStreamOf(at.stream));
  const Retained* version = Find(at.version);
  if (version == nullptr) return AbortedError("the version is not retained");
  return PublishedState{.slices = version->after, .state_token = StateToken(version->after)};
}

void Sender::ReadFull(const VersionAt& at, std::vector<RankSlice> slices, FullDone done) {
  Status status = CheckStreamOf(at.stream);
  if (status.ok() && Find(at.version) == nullptr) status = AbortedError("it is not retained");
  if (!status.ok()) return done(status);
  ReadNext(std::make_shared<FullRead>(FullRead{
      .at = at, .slices = std::move(slices), .done = std::move(done), .reached = at.version}));
}

void Sender::ReadNext(const std::shared_ptr<FullRead>& read) {
  if (read->read.size() == read->slices.size()) return read->done(std::move(read->read));
  if (const Status status = CheckStreamOf(read->at.stream); !status.ok()) {
    return read->done(status);
  }
  const bool undo = world().options.mutation != Mutation::kSkipFullCheck;
  const uint32_t slice = read->slices[read->read.size()].value();
  const WeightVersion now = *state_->captured;
  Slice words = state_->snapshot[slice];
  if (undo && now != read->reached) {
    // A version that is captured but not sealed cannot be undone yet.
    if (state_->log.back().version < now) {
      return After(kSliceReadTime, [this, read] { ReadNext(read); });
    }
    const auto range = state_->chain.Lead(read->reached, now);
    if (!range.ok()) return read->done(range.status());
    for (size_t i = 0; i < range->count; ++i) {
      read->chain.push_back(state_->log[range->first + i].delta);
    }
    read->reached = now;
  }
  if (undo) {
    if (!read->chain.empty()) world().See("a moving snapshot is read");
    for (auto delta = read->chain.rbegin(); delta != read->chain.rend(); ++delta) {
      Undo(*delta, slice, words);
    }
  }
  read->read.push_back(words);
  After(kSliceReadTime, [this, read] { ReadNext(read); });
}

}  // namespace dws::sim
