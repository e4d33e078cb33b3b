#include "common/sync_state/broadcast_state.h"

#include <algorithm>

namespace dws {
namespace {

// Doubles with every failure after the first.
Duration Backoff(uint32_t failures) {
  Duration backoff = limits::kBroadcastBackoffMin;
  for (uint32_t i = 1; i < failures && backoff < limits::kBroadcastBackoffMax; ++i) backoff *= 2;
  return std::min<Duration>(backoff, limits::kBroadcastBackoffMax);
}

}  // namespace

void BroadcastState::OnCapable(ConnectionId connection) { receivers_.try_emplace(connection); }

void BroadcastState::OnDisconnect(ConnectionId connection) {
  const auto found = receivers_.find(connection);
  if (found == receivers_.end()) return;
  const bool member = found->second.owes == epoch_;
  receivers_.erase(found);
  if (member && (phase_ == Phase::kForming || phase_ == Phase::kReady)) broken_ = true;
}

void BroadcastState::OnJoined(ConnectionId connection, BroadcastEpoch epoch) {
  const auto found = receivers_.find(connection);
  if (found == receivers_.end() || found->second.owes != epoch) return;
  found->second.joined = true;
}

void BroadcastState::OnLeft(ConnectionId connection, BroadcastEpoch epoch, Departure why,
                            TimePoint now) {
  const auto found = receivers_.find(connection);
  if (found == receivers_.end() || found->second.owes != epoch) return;
  found->second.owes.reset();
  found->second.joined = false;
  if (why == Departure::kUnable) {
    found->second.excluded_until = now + limits::kBroadcastExclusion;
  }
  if (epoch == epoch_ && (phase_ == Phase::kForming || phase_ == Phase::kReady)) broken_ = true;
}

void BroadcastState::OnFormed(BroadcastEpoch epoch) {
  if (epoch == epoch_ && phase_ == Phase::kForming) own_joined_ = true;
}

void BroadcastState::OnBroken(BroadcastEpoch epoch) {
  if (epoch != epoch_) return;
  if (phase_ == Phase::kForming || phase_ == Phase::kReady) broken_ = true;
}

void BroadcastState::OnBroadcast(TimePoint now) {
  failures_ = 0;
  last_broadcast_ = now;
}

std::vector<ConnectionId> BroadcastState::members() const {
  std::vector<ConnectionId> members;
  if (epoch_ == BroadcastEpoch(0)) return members;
  for (const auto& [connection, receiver] : receivers_) {
    if (receiver.owes == epoch_) members.push_back(connection);
  }
  return members;
}

std::vector<ConnectionId> BroadcastState::Eligible(TimePoint now) const {
  std::vector<ConnectionId> eligible;
  for (const auto& [connection, receiver] : receivers_) {
    if (eligible.size() + 1 >= limits::kBroadcastMembersMax) break;
    if (!receiver.owes.has_value() && now >= receiver.excluded_until) {
      eligible.push_back(connection);
    }
  }
  return eligible;
}

bool BroadcastState::AllJoined() const {
  return std::all_of(receivers_.begin(), receivers_.end(), [this](const auto& entry) {
    return entry.second.owes != epoch_ || entry.second.joined;
  });
}

BroadcastState::Step BroadcastState::BeginEnd(TimePoint now, bool failed) {
  phase_ = Phase::kEnding;
  began_ = now;
  broken_ = false;
  failures_ += failed ? 1 : 0;
  not_before_ = failed ? now + Backoff(failures_) : now;
  return End{.epoch = epoch_, .members = members(), .failed = failed};
}

BroadcastState::Step BroadcastState::Next(TimePoint now) {
  switch (phase_) {
    case Phase::kIdle: {
      if (now < not_before_) return {};
      std::vector<ConnectionId> members = Eligible(now);
      if (members.empty()) return {};
      phase_ = Phase::kForming;
      epoch_ = BroadcastEpoch(epoch_.value() + 1);
      own_joined_ = broken_ = false;
      began_ = now;
      for (const ConnectionId member : members) {
        receivers_[member].owes = epoch_;
        receivers_[member].joined = false;
      }
      return Form{.epoch = epoch_, .members = std::move(members)};
    }
    case Phase::kForming:
      if (broken_ || now >= began_ + join_timeout_) return BeginEnd(now, true);
      if (own_joined_ && AllJoined()) {
        phase_ = Phase::kReady;
        began_ = now;
      }
      return {};
    case Phase::kReady: {
      if (broken_) return BeginEnd(now, true);
      const bool may_rebuild = now >= began_ + limits::kBroadcastRebuildInterval &&
                               now >= last_broadcast_ + limits::kBroadcastQuiet;
      const bool full = members().size() + 1 >= limits::kBroadcastMembersMax;
      if (may_rebuild && !full && !Eligible(now).empty()) return BeginEnd(now, false);
      return {};
    }
    case Phase::kEnding:
      if (members().empty() || now >= began_ + limits::kBroadcastLeaveGrace) phase_ = Phase::kIdle;
      return {};
  }
  return {};
}

}  // namespace dws
