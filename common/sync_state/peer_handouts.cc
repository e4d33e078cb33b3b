// Receivers are few thousands at most, and each asks a few times a second at most: all of them are
// looked at for each question.
#include "common/sync_state/peer_handouts.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace dws {

PeerHandouts::Receiver* PeerHandouts::Find(ConnectionId connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : &receivers_.at(found->second);
}

void PeerHandouts::ReadFrom(Receiver& receiver, const std::string& from) {
  if (!receiver.reads_from.empty()) --receivers_.at(receiver.reads_from).readers;
  receiver.reads_from = from;
  if (!from.empty()) ++receivers_.at(from).readers;
}

void PeerHandouts::End(Receiver& receiver, bool committed) {
  ReadFrom(receiver, "");
  receiver.waits = false;
  if (receiver.grant_until.has_value() && !committed) ++grants_lost_;
  receiver.grant_until.reset();
}

void PeerHandouts::Remove(const std::string& receiver_id) {
  Receiver& gone = receivers_.at(receiver_id);
  End(gone, false);
  for (auto& [id, receiver] : receivers_) {
    if (receiver.reads_from == receiver_id) ReadFrom(receiver, "");
  }
  connections_.erase(gone.connection);
  receivers_.erase(receiver_id);
}

void PeerHandouts::Connect(const std::string& receiver_id, ConnectionId connection,
                           std::string address, std::string view) {
  if (const auto found = receivers_.find(receiver_id); found != receivers_.end()) {
    if (found->second.connection > connection) return;
    Remove(receiver_id);
  }
  receivers_[receiver_id] = {
      .connection = connection, .address = std::move(address), .view = std::move(view)};
  connections_[connection] = receiver_id;
}

void PeerHandouts::Disconnect(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) Remove(std::string(found->second));
}

void PeerHandouts::OnStaged(ConnectionId connection, TimePoint now) {
  Receiver* const receiver = Find(connection);
  if (receiver == nullptr || !receiver->grant_until.has_value()) return;
  receiver->grant_until = now + kPeerGrantCommit;
}

// A commit of an older version, which is acknowledged again after a welcome, ends nothing.
void PeerHandouts::OnCommitted(ConnectionId connection, const VersionAt& at) {
  Receiver* const receiver = Find(connection);
  if (receiver == nullptr) return;
  receiver->committed = at;
  const bool news = !receiver->asked.has_value() || receiver->asked->stream != at.stream ||
                    receiver->asked->version <= at.version;
  if (news) End(*receiver, true);
}

void PeerHandouts::OnNack(ConnectionId connection) {
  Receiver* const receiver = Find(connection);
  if (receiver != nullptr) End(*receiver, false);
}

void PeerHandouts::OnRead(const std::string& receiver_id, bool done, TimePoint now) {
  const auto found = receivers_.find(receiver_id);
  if (found == receivers_.end() || !found->second.grant_until.has_value()) return;
  found->second.grant_until =
      now + (done ? kPeerGrantCommit + found->second.other_ranks : Duration(kPeerGrantIdle));
}

void PeerHandouts::Expire(TimePoint now) {
  for (auto& [id, receiver] : receivers_) {
    if (receiver.reads_until < now) ReadFrom(receiver, "");
    if (receiver.grant_until.has_value() && *receiver.grant_until < now) End(receiver, false);
  }
}

// One that has given up does not say so.
bool PeerHandouts::Waits(const Receiver& receiver, TimePoint now) {
  return receiver.waits && now - receiver.asked_at < 4 * kPeerPollMax;
}

bool PeerHandouts::SameHost(const std::string& one, const std::string& other) {
  return one.substr(0, one.rfind(':')) == other.substr(0, other.rfind(':'));
}

bool PeerHandouts::Avoids(const Question& question, const std::string& address) {
  const auto avoid = question.avoid.first(std::min(question.avoid.size(), kPeersAvoidedMax));
  return std::ranges::find(avoid, address) != avoid.end();
}

const std::string* PeerHandouts::Pick(const Question& question, const Receiver& asker,
                                      bool& busy) const {
  busy = false;
  const std::string* best = nullptr;
  std::tuple<bool, size_t, uint64_t> best_rank;
  for (const auto& [id, receiver] : receivers_) {
    if (&receiver == &asker || receiver.view != asker.view || receiver.committed != question.at ||
        Avoids(question, receiver.address)) {
      continue;
    }
    if (id == asker.reads_from) return &id;
    if (receiver.readers >= kPeerReadersMax) {
      busy = true;
      continue;
    }
    const std::tuple rank(!SameHost(receiver.address, asker.address), receiver.readers,
                          receiver.handed_out);
    if (best != nullptr && best_rank <= rank) continue;
    best = &id;
    best_rank = rank;
  }
  return best;
}

void PeerHandouts::Without(const Question& question) {
  for (const std::string& address :
       question.without.first(std::min(question.without.size(), kPeersAvoidedMax))) {
    for (auto& [id, receiver] : receivers_) {
      if (receiver.address == address && receiver.committed == question.at) {
        receiver.committed.reset();
      }
    }
  }
}

std::optional<WeightVersion> PeerHandouts::Newer(const Question& question,
                                                 const Receiver& asker) const {
  std::optional<WeightVersion> newest;
  for (const auto& [id, other] : receivers_) {
    if (&other == &asker || other.view != asker.view || !other.committed.has_value() ||
        other.committed->stream != question.at.stream ||
        other.committed->version <= question.at.version ||
        other.committed->version > question.newest || Avoids(question, other.address)) {
      continue;
    }
    newest = std::max(newest, std::optional(other.committed->version));
  }
  return newest;
}

bool PeerHandouts::Expected(const Question& question, const Receiver& asker, TimePoint now) const {
  return std::ranges::any_of(receivers_, [&](const auto& entry) {
    const Receiver& other = entry.second;
    if (&other == &asker || other.view != asker.view) return false;
    if (other.grant_until.has_value()) return true;
    if (!question.has_delta || now - asker.asked_since >= kPeerCatchUp) return false;
    const auto older = [&](const std::optional<VersionAt>& at) {
      return at.has_value() && at->stream == question.at.stream &&
             at->version < question.at.version;
    };
    // One that asks for this version needs full tensors itself.
    return older(other.committed) && (!other.asked.has_value() || older(other.asked));
  });
}

bool PeerHandouts::OthersWait(const Question& question, const Receiver& asker,
                              TimePoint now) const {
  return std::ranges::any_of(receivers_, [&](const auto& entry) {
    const Receiver& other = entry.second;
    return &other != &asker && other.view == asker.view && other.asked == question.at &&
           Waits(other, now) && !other.only_others &&
           (other.failed != question.at || other.failure < asker.failure);
  });
}

PeerHandouts::Answer PeerHandouts::Wait(Receiver& asker) {
  asker.waits = true;
  ReadFrom(asker, "");
  const auto waiting =
      std::ranges::count_if(receivers_, [](const auto& entry) { return entry.second.waits; });
  return {.wait = std::clamp<Duration>(std::chrono::milliseconds(4 * waiting), kPeerPollMin,
                                       kPeerPollMax)};
}

std::optional<PeerHandouts::Answer> PeerHandouts::Ask(const Question& question, TimePoint now) {
  Expire(now);
  const auto found = receivers_.find(question.receiver_id);
  if (found == receivers_.end()) return std::nullopt;
  Receiver& asker = found->second;
  if (asker.asked != question.at) {
    asker.asked = question.at;
    asker.asked_since = now;
  }
  asker.asked_at = now;
  asker.waits = false;
  asker.other_ranks = question.other_ranks;
  asker.only_others = question.only_others;
  if (asker.committed == question.at) asker.committed.reset();  // its engine has lost it
  Without(question);
  if (question.failed) {
    End(asker, false);
    asker.failed = question.at;
    asker.failure = ++failures_;
  }
  // All its ranks are let through, and what it wants now counts.
  if (asker.grant_until.has_value() && !question.only_others) {
    asker.grant_until = std::max(*asker.grant_until, now + kPeerGrantIdle);
    return Answer{};
  }
  bool busy = false;
  if (const std::string* const peer = Pick(question, asker, busy); peer != nullptr) {
    Receiver& source = receivers_.at(*peer);
    if (asker.reads_from != *peer) {
      ReadFrom(asker, *peer);
      source.handed_out = ++handed_out_;
    }
    asker.reads_until = now + kPeerReadLease;
    return Answer{.address = source.address};
  }
  const auto newer = Newer(question, asker);
  const auto completed = completed_.find(asker.view);
  const bool completed_this = completed != completed_.end() &&
                              completed->second.stream == question.at.stream &&
                              completed->second.version >= question.at.version;
  const bool completes =
      newer.has_value() && question.begun && !question.only_others && !completed_this;
  if (!busy && newer.has_value() && !completes) {
    ReadFrom(asker, "");
    return Answer{.address = {}, .newer = newer};
  }
  if (busy || question.only_others || (!completes && Expected(question, asker, now)) ||
      (asker.failed == question.at && OthersWait(question, asker, now))) {
    return Wait(asker);
  }
  ReadFrom(asker, "");
  if (completes) completed_[asker.view] = question.at;
  // What it has begun may lack nothing of this sender's rank.
  asker.grant_until =
      now + kPeerGrantIdle + (question.begun ? question.other_ranks : Duration::zero());
  ++grants_;
  return Answer{};
}

PeerHandouts::Totals PeerHandouts::totals(TimePoint now) const {
  Totals totals{.able = static_cast<uint32_t>(receivers_.size()),
                .handed_out = handed_out_,
                .grants = grants_,
                .grants_lost = grants_lost_};
  for (const auto& [id, receiver] : receivers_) {
    totals.waiting += Waits(receiver, now) ? 1 : 0;
  }
  return totals;
}

}  // namespace dws
