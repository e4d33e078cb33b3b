#include "common/sync_state/announcer_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"

namespace dws {
namespace {
constexpr size_t kCommitTimesMax = 64;
// A receiver fetches at most a delta of the rank, and full tensors where that did not succeed.
constexpr uint64_t kReportBytesMax = 2 * limits::kObjectBytesMax;
constexpr double kReportSecondsMax = 7 * 86'400;

void Clear(AnnouncerState::Receiver& receiver) {
  receiver.staged.reset();
  receiver.committed.reset();
  receiver.committed_token = {};
  receiver.last_commit = {};
  receiver.last_error.clear();
  receiver.commit_times.clear();
  receiver.behind_since.reset();
}

// Its last report was a refusal, and it is likely to connect again.
bool RefusedRecently(const AnnouncerState::Receiver& receiver, TimePoint now) {
  return !receiver.last_error.empty() && receiver.absent_since.has_value() &&
         now - *receiver.absent_since < limits::kRefusedReturnWait;
}

enum class Standing : uint8_t { kCommitted, kMissing, kLeftOut, kAwaited, kAbsent, kUnknown };

Standing StandingOf(const AnnouncerState& state, const AnnouncerState::Receiver& receiver,
                    WeightVersion version, TimePoint now) {
  const bool present = receiver.connection.has_value();
  if (present && receiver.committed >= version) return Standing::kCommitted;
  if (present || (receiver.committed < version && RefusedRecently(receiver, now))) {
    return state.LeftOut(receiver, now) ? Standing::kLeftOut : Standing::kMissing;
  }
  if (receiver.awaited) return Standing::kAwaited;
  return receiver.absent_since.has_value() ? Standing::kAbsent : Standing::kUnknown;
}

bool IsMet(const WaitCondition& condition, size_t committed, size_t waited_for) {
  switch (condition.policy) {
    case WaitCondition::Policy::kAll:
      return committed > 0 && waited_for == 0;
    case WaitCondition::Policy::kQuorum:
      return committed >= condition.quorum;
    case WaitCondition::Policy::kAny:
      return committed > 0;
  }
  return false;
}

std::optional<WeightVersion> HighestOf(
    const std::map<std::string, AnnouncerState::Receiver>& receivers) {
  std::optional<WeightVersion> highest;
  for (const auto& [id, receiver] : receivers) highest = std::max(highest, receiver.committed);
  return highest;
}
}  // namespace

AcknowledgedCommit AcknowledgedCommit::possible() const {
  AcknowledgedCommit report = *this;
  for (double* const seconds : {&report.pause_seconds, &report.stage_seconds}) {
    const bool possible = *seconds >= 0 && *seconds <= kReportSecondsMax;
    if (!possible) *seconds = 0;  // also catches what is not a number
  }
  if (report.fetched_bytes > kReportBytesMax) report.fetched_bytes = 0;
  return report;
}

void AnnouncerState::StartStream(const StreamId& stream) {
  if (stream_ == stream) return;
  stream_ = stream;
  ClearVersions();
}

void AnnouncerState::ForgetStream() {
  stream_.reset();
  ClearVersions();
}

void AnnouncerState::ClearVersions() {
  for (auto& [id, receiver] : receivers_) Clear(receiver);
  highest_.reset();
  unmarked_ = true;
}

void AnnouncerState::Remember(const std::string& receiver_id, bool awaited) {
  if (receivers_.size() >= limits::kReceiversMax) return;
  const auto [found, first] = receivers_.try_emplace(receiver_id);
  if (first) found->second.awaited = awaited;
  unmarked_ = true;
}

std::vector<std::string> AnnouncerState::StopAwaiting() {
  std::vector<std::string> given_up;
  for (auto& [id, receiver] : receivers_) {
    if (!std::exchange(receiver.awaited, false)) continue;
    given_up.push_back(id);
  }
  return given_up;
}

Status AnnouncerState::Forget(const std::string& receiver_id) {
  const auto found = receivers_.find(receiver_id);
  if (found == receivers_.end()) {
    return NotFoundError("receiver '{}' is not known to this sender", receiver_id);
  }
  if (found->second.connection.has_value()) {
    return FailedPreconditionError(
        "receiver '{}' is connected: stop it first, or this sender would know it again immediately",
        receiver_id);
  }
  receivers_.erase(found);
  highest_ = HighestOf(receivers_);
  return OkStatus();
}

std::optional<std::string> AnnouncerState::GivesWay(const std::string& receiver_id) const {
  if (receivers_.contains(receiver_id) || receivers_.size() < limits::kReceiversMax) {
    return std::nullopt;
  }
  std::optional<std::string> awaited;
  for (const auto& [id, receiver] : receivers_) {
    if (receiver.connection.has_value()) continue;
    if (!receiver.awaited) return id;  // it will report its commits again
    if (!awaited.has_value()) awaited = id;
  }
  return awaited;
}

Result<std::optional<ConnectionId>> AnnouncerState::Connect(const std::string& receiver_id,
                                                            ConnectionId connection,
                                                            TimePoint now) {
  if (!receivers_.contains(receiver_id) && receivers_.size() >= limits::kReceiversMax) {
    const std::optional<std::string> absent = GivesWay(receiver_id);
    if (!absent.has_value()) {
      return ResourceExhaustedError(
          "receiver '{}' refused: {} receivers are connected, the maximum", receiver_id,
          receivers_.size());
    }
    receivers_.erase(*absent);
    highest_ = HighestOf(receivers_);
  }
  const auto [entry, is_new] = receivers_.try_emplace(receiver_id);
  Receiver& receiver = entry->second;
  // An awaited receiver was waited for: its time starts when it is back.
  if ((is_new || receiver.awaited) && highest_ > receiver.committed) receiver.behind_since = now;
  const std::optional<ConnectionId> fenced = receiver.connection;
  if (fenced.has_value()) connections_.erase(*fenced);
  receiver.connection = connection;
  receiver.absent_since.reset();
  receiver.awaited = false;
  receiver.last_announced = Nonce(0);
  connections_[connection] = {.receiver_id = receiver_id, .nonce = 0};
  return fenced;
}

void AnnouncerState::Disconnect(ConnectionId connection, TimePoint now) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Receiver& receiver = receivers_.at(found->second.receiver_id);
  receiver.connection.reset();
  receiver.absent_since = now;
  connections_.erase(found);
}

Nonce AnnouncerState::NextNonce(ConnectionId connection, bool announcement) {
  const auto found = connections_.find(connection);
  // The connection is fenced: no answer will come.
  if (found == connections_.end()) return Nonce(0);
  const Nonce nonce(++found->second.nonce);
  if (announcement) receivers_.at(found->second.receiver_id).last_announced = nonce;
  return nonce;
}

AnnouncerState::Receiver* AnnouncerState::Find(ConnectionId connection, const StreamId& stream) {
  const auto found = connections_.find(connection);
  if (found == connections_.end() || stream_ != stream) return nullptr;
  return &receivers_.at(found->second.receiver_id);
}

void AnnouncerState::Commit(Receiver& receiver, const AcknowledgedCommit& report, TimePoint now) {
  const WeightVersion version = report.version;
  if (receiver.committed.has_value() && *receiver.committed >= version) return;
  receiver.committed = version;
  receiver.committed_token = report.state_token;
  receiver.behind_since = highest_ > version ? std::optional(now) : std::nullopt;
  if (highest_ < version || unmarked_) {
    highest_ = std::max(highest_, receiver.committed);
    unmarked_ = false;
    // A receiver that has committed nothing is below every version.
    for (auto& [id, other] : receivers_) {
      if (other.committed < *highest_ && !other.behind_since.has_value()) other.behind_since = now;
    }
  }
  receiver.commit_times.emplace_back(version, now);
  if (receiver.commit_times.size() > kCommitTimesMax) {
    receiver.commit_times.erase(receiver.commit_times.begin());
  }
}

std::vector<std::string> AnnouncerState::OnPublished(WeightVersion version,
                                                     std::span<const Digest> tokens) {
  std::vector<std::string> wrong;
  for (auto& [id, receiver] : receivers_) {
    if (receiver.committed < version) continue;
    const bool same_weights =
        std::find(tokens.begin(), tokens.end(), receiver.committed_token) != tokens.end();
    if (receiver.committed == version && same_weights) continue;
    Clear(receiver);
    wrong.push_back(id);
  }
  if (!wrong.empty()) {
    highest_ = HighestOf(receivers_);
    unmarked_ = true;
  }
  return wrong;
}

bool AnnouncerState::OnStaged(ConnectionId connection, Nonce nonce, const StreamId& stream,
                              WeightVersion version) {
  Receiver* receiver = Find(connection, stream);
  if (receiver == nullptr || receiver->last_announced != nonce) return false;
  receiver->staged = version;
  return true;
}

bool AnnouncerState::OnCommitted(ConnectionId connection, const StreamId& stream,
                                 const AcknowledgedCommit& report, TimePoint now) {
  Receiver* receiver = Find(connection, stream);
  if (receiver == nullptr) return false;
  // A report that is repeated after a reconnect has no figures of the commit.
  if (receiver->committed <= report.version && receiver->last_commit.version < report.version) {
    receiver->last_commit = report.possible();
  }
  Commit(*receiver, report, now);
  receiver->last_error.clear();
  return true;
}

bool AnnouncerState::OnNack(ConnectionId connection, Nonce nonce, const StreamId& stream,
                            std::string_view error) {
  Receiver* receiver = Find(connection, stream);
  if (receiver == nullptr) return false;
  ++receiver->nacks;
  if (receiver->last_announced != nonce) return false;
  receiver->last_error = EscapeUnprintable(Utf8Prefix(error, limits::kErrorBytesMax));
  return true;
}

bool AnnouncerState::LeftOut(const Receiver& receiver, TimePoint now) const {
  return laggard_after_ > Duration::zero() && receiver.behind_since.has_value() &&
         now - *receiver.behind_since >= laggard_after_;
}

WaitTally AnnouncerState::Tally(WeightVersion version, TimePoint now) const {
  WaitTally tally;
  for (const auto& [id, receiver] : receivers_) {
    switch (StandingOf(*this, receiver, version, now)) {
      case Standing::kCommitted:
        tally.committed.push_back(id);
        break;
      case Standing::kMissing:
        tally.missing.push_back(id);
        break;
      case Standing::kLeftOut:
        tally.left_out.push_back(id);
        break;
      case Standing::kAwaited:
        tally.awaited.push_back(id);
        break;
      case Standing::kAbsent:
        tally.absent.push_back(id);
        break;
      case Standing::kUnknown:
        break;
    }
  }
  return tally;
}

bool AnnouncerState::Met(const WaitTally& tally, const WaitCondition& condition) {
  return IsMet(condition, tally.committed.size(), tally.missing.size() + tally.awaited.size());
}

bool AnnouncerState::Met(WeightVersion version, const WaitCondition& condition,
                         TimePoint now) const {
  size_t committed = 0;
  size_t waited_for = 0;
  for (const auto& [id, receiver] : receivers_) {
    const Standing standing = StandingOf(*this, receiver, version, now);
    committed += standing == Standing::kCommitted ? 1 : 0;
    waited_for += standing == Standing::kMissing || standing == Standing::kAwaited ? 1 : 0;
    if (waited_for > 0 && condition.policy == WaitCondition::Policy::kAll) return false;
  }
  return IsMet(condition, committed, waited_for);
}

std::optional<TimePoint> AnnouncerState::CommitTime(const std::vector<std::string>& receivers,
                                                    WeightVersion version) const {
  std::optional<TimePoint> last;
  for (const std::string& id : receivers) {
    const auto found = receivers_.find(id);
    if (found == receivers_.end()) continue;
    for (const auto& [committed, time] : found->second.commit_times) {
      if (committed < version) continue;
      last = last.has_value() ? std::max(*last, time) : time;
      break;
    }
  }
  return last;
}

}  // namespace dws
