#include "sender_daemon/serve/receiver_hub.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"

namespace dws {
namespace {
// How often deadlines and cancellations of waits are checked.
constexpr std::chrono::milliseconds kTick{50};
constexpr std::string_view kNumbersBeganAgain =
    "the numbers of the stream began again (an older copy of this sender's state, or a second "
    "sender); start the trainer with a new stream";

constexpr std::chrono::minutes kLookInterval{1};  // between checks for receivers to forget

}  // namespace

ReceiverHub::ReceiverHub(const Clock& clock, std::string job_id, Duration laggard_after,
                         std::unique_ptr<ReceiverMemory> memory,
                         std::function<void(const AcknowledgedCommit&)> on_commit)
    : clock_(clock),
      job_id_(std::move(job_id)),
      on_commit_(std::move(on_commit)),
      state_(laggard_after),
      memory_(std::move(memory)),
      keepalive_at_(clock.Now() + limits::kKeepaliveInterval),
      ticker_([this] {
        Tick();
        return kTick;
      }) {
  Recall();
  ticker_.Start(kTick);
}

ReceiverHub::~ReceiverHub() { Stop(); }

void ReceiverHub::Stop() {
  std::vector<Wait> waits;
  std::map<std::string, AnnouncerState::Receiver> receivers;
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !std::exchange(stopping_, true);
    receivers = state_.receivers();  // before closing the connections below makes them absent
    waits.swap(waits_);
  }
  for (Wait& wait : waits) wait.done(UnavailableError("the sender is shutting down"), {});
  for (const auto& connection : Connections()) {
    connection->Close(UnavailableError("the sender is shutting down"));
  }
  ticker_.Stop();
  if (!first || memory_ == nullptr) return;
  memory_->Look(receivers, clock_.Now());
  memory_->SaveLast();
}

Result<ConnectionId> ReceiverHub::Connect(const std::string& job_id, const std::string& receiver_id,
                                          std::shared_ptr<SyncConnection> connection,
                                          std::string view) {
  if (job_id != job_id_) {
    return InvalidArgumentError("receiver '{}' belongs to job '{}', this sender to job '{}'",
                                receiver_id, job_id, job_id_);
  }
  if (receiver_id.empty() || receiver_id.size() > limits::kIdBytesMax) {
    return InvalidArgumentError("a receiver id has {} bytes, expected 1 to {}", receiver_id.size(),
                                limits::kIdBytesMax);
  }
  std::shared_ptr<SyncConnection> fenced;
  std::optional<std::string> gone;
  ConnectionId id;
  {
    MutexLock lock(mutex_);
    if (stopping_) return UnavailableError("the sender is shutting down");
    id = ConnectionId(++last_connection_);
    gone = state_.GivesWay(receiver_id);
    DWS_ASSIGN_OR_RETURN(const auto old, state_.Connect(receiver_id, id, clock_.Now()));
    if (old.has_value()) {
      if (const auto found = links_.find(*old); found != links_.end()) {
        fenced = found->second.connection;
        links_.erase(found);
      }
    }
    DWS_CHECK(!links_.contains(id));
    links_[id] = {.connection = std::move(connection), .view = std::move(view)};
    known_changed_ = true;
  }
  if (gone.has_value()) {
    LogWarning("receiver_gave_way",
               {{"id", *gone}, {"to", receiver_id}, {"known_max", limits::kReceiversMax}});
  }
  FinishWaits();
  if (fenced != nullptr) {
    LogWarning("receiver_fenced",
               {{"id", receiver_id}, {"reason", "another connection took its place"}});
    fenced->Close(AbortedError(
        "receiver '{}' connected again, this connection is fenced: if two receivers have this id, "
        "give one of them another --receiver-id",
        receiver_id));
  }
  return id;
}

void ReceiverHub::Disconnect(ConnectionId connection) {
  {
    MutexLock lock(mutex_);
    state_.Disconnect(connection, clock_.Now());
    links_.erase(connection);
    known_changed_ = true;
  }
  FinishWaits();
}

Nonce ReceiverHub::NextNonce(ConnectionId connection, bool announcement) {
  MutexLock lock(mutex_);
  return state_.NextNonce(connection, announcement);
}

bool ReceiverHub::Plausible(ConnectionId connection, const StreamId& stream,
                            const AcknowledgedCommit& report) const {
  const auto link = links_.find(connection);
  const RankStatePtr rank = link == links_.end() ? rank_ : StateOf(link->second.view);
  RetainedVersionPtr newest = rank == nullptr ? nullptr : rank->log->Newest();
  if (rank == nullptr && link != links_.end()) {
    const auto former = former_views_.find(link->second.view);
    if (former != former_views_.end()) newest = former->second;
  }
  // A restarted sender has an empty log: then the receiver knows more than we do.
  if (newest == nullptr || rank_->stream != stream) return true;
  const RetainedVersionPtr retained = report.version == newest->version ? newest
                                      : rank == nullptr                 ? nullptr
                                                        : rank->log->Find(report.version);
  const bool other_weights = retained != nullptr && !retained->Has(report.state_token);
  if (report.version <= newest->version && !other_weights) return true;
  LogWarning("report_ignored",
             {{"version", report.version.value()},
              {"newest", newest->version.value()},
              {"reason",
               fmt::format("{}: {}",
                           other_weights ? "its weights differ from those published as this version"
                                         : "this version was never published",
                           kNumbersBeganAgain)}});
  return false;
}

void ReceiverHub::OnStaged(ConnectionId connection, Nonce nonce, const StreamId& stream,
                           WeightVersion version) {
  MutexLock lock(mutex_);
  state_.OnStaged(connection, nonce, stream, version);
}

bool ReceiverHub::OnCommitted(ConnectionId connection, const StreamId& stream,
                              const AcknowledgedCommit& report) {
  bool counted = false;
  {
    MutexLock lock(mutex_);
    if (!Plausible(connection, stream, report)) return false;
    counted = state_.OnCommitted(connection, stream, report, clock_.Now());
  }
  if (counted && on_commit_ != nullptr) on_commit_(report.possible());
  FinishWaits();
  return true;
}

bool ReceiverHub::OnNack(ConnectionId connection, Nonce nonce, const StreamId& stream,
                         const std::string& error) {
  MutexLock lock(mutex_);
  return state_.OnNack(connection, nonce, stream, error);
}

void ReceiverHub::Welcome(RankStatePtr state) {
  std::vector<Wait> over;
  {
    MutexLock lock(mutex_);
    // A version number of one stream means nothing in another.
    if (rank_ != nullptr && rank_->stream != state->stream) over.swap(waits_);
    state_.StartStream(state->stream);
    if (rank_ != state) {
      former_views_.clear();
      if (rank_ != nullptr && rank_->stream == state->stream) {
        for (const auto& [name, view] : views_) former_views_[name] = view->log->Newest();
      }
      views_.clear();
    }
    rank_ = std::move(state);
  }
  for (Wait& wait : over) {
    wait.done(
        AbortedError("the stream ended before version {} was committed", wait.version.value()), {});
  }
  for (const auto& connection : Connections()) connection->WelcomeDue();
}

void ReceiverHub::Forget() {
  std::vector<Wait> over;
  {
    MutexLock lock(mutex_);
    over.swap(waits_);
    rank_ = nullptr;
    former_views_.clear();
    views_.clear();
    state_.ForgetStream();
  }
  const std::string reason = "an operator made this daemon forget the stream";
  for (Wait& wait : over) {
    wait.done(AbortedError("version {} is no longer waited for: {}", wait.version.value(), reason),
              {});
  }
  for (const auto& connection : Connections()) connection->Close(UnavailableError("{}", reason));
}

void ReceiverHub::Announce(const std::optional<std::string>& view) {
  std::vector<std::string> wrong;
  {
    MutexLock lock(mutex_);
    const RetainedVersionPtr newest = rank_ == nullptr ? nullptr : rank_->log->Newest();
    if (newest != nullptr) {
      std::vector<Digest> tokens = {newest->manifest.state_token};
      std::set<std::string> later;  // views that may have it later
      for (const auto& [name, state] : views_) {
        const RetainedVersionPtr same = state->log->Find(newest->version);
        if (same != nullptr) tokens.push_back(same->manifest.state_token);
        if (same == nullptr) later.insert(name);
      }
      for (const auto& [id, receiver] : state_.receivers()) {
        if (!receiver.connection.has_value() || !links_.contains(*receiver.connection)) continue;
        if (later.contains(links_[*receiver.connection].view)) {
          tokens.push_back(receiver.committed_token);  // nothing to compare it with
        }
      }
      wrong = state_.OnPublished(newest->version, tokens);
    }
  }
  for (const std::string& id : wrong) {
    LogWarning("report_ignored",
               {{"id", id},
                {"reason", fmt::format("its weights are not those that are published now: {}",
                                       kNumbersBeganAgain)}});
  }
  for (const auto& connection : view.has_value() ? Followers(*view) : Connections()) {
    connection->AnnounceDue();
  }
  FinishWaits();
}

void ReceiverHub::Replacing() {
  for (const auto& connection : Connections()) connection->ReplacingDue();
}

RankStatePtr ReceiverHub::Current() const {
  MutexLock lock(mutex_);
  return rank_;
}

RankStatePtr ReceiverHub::Current(const std::string& view) const {
  MutexLock lock(mutex_);
  return StateOf(view);
}

RankStatePtr ReceiverHub::StateOf(const std::string& view) const {
  if (view.empty()) return rank_;
  const auto found = views_.find(view);
  return found == views_.end() ? nullptr : found->second;
}

RankStatePtr ReceiverHub::WithLayout(const Digest& signature) const {
  MutexLock lock(mutex_);
  if (rank_ != nullptr && rank_->layout().signature() == signature) return rank_;
  for (const auto& [name, view] : views_) {
    if (view->layout().signature() == signature) return view;
  }
  return nullptr;
}

void ReceiverHub::SetView(const std::string& name, RankStatePtr state) {
  {
    MutexLock lock(mutex_);
    former_views_.erase(name);
    if (state == nullptr) {
      views_.erase(name);
      return;
    }
    views_[name] = std::move(state);
  }
  for (const auto& connection : Followers(name)) connection->WelcomeDue();
}

void ReceiverHub::EndView(const std::string& name, const Status& reason) {
  SetView(name, nullptr);
  for (const auto& connection : Followers(name)) connection->Close(reason);
}

std::set<std::string> ReceiverHub::FollowedViews() const {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (const auto& [id, link] : links_) {
    if (!link.view.empty()) names.insert(link.view);
  }
  return names;
}

std::vector<ReceiverHub::ServedView> ReceiverHub::Views() const {
  MutexLock lock(mutex_);
  std::vector<ServedView> views;
  for (const auto& [name, state] : views_) {
    const auto follows = [&name = name](const auto& entry) { return entry.second.view == name; };
    views.push_back({.name = name,
                     .state = state,
                     .receivers = static_cast<uint32_t>(std::ranges::count_if(links_, follows))});
  }
  return views;
}

std::string ReceiverHub::ViewOf(ConnectionId connection) const {
  MutexLock lock(mutex_);
  const auto found = links_.find(connection);
  return found == links_.end() ? std::string() : found->second.view;
}

std::map<std::string, AnnouncerState::Receiver> ReceiverHub::Receivers() const {
  MutexLock lock(mutex_);
  return state_.receivers();
}

std::vector<std::shared_ptr<SyncConnection>> ReceiverHub::Connections() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<SyncConnection>> connections;
  for (const auto& [id, link] : links_) connections.push_back(link.connection);
  return connections;
}

std::vector<std::shared_ptr<SyncConnection>> ReceiverHub::Followers(const std::string& view) const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<SyncConnection>> connections;
  for (const auto& [id, link] : links_) {
    if (link.view == view) connections.push_back(link.connection);
  }
  return connections;
}

bool ReceiverHub::LeftOut(const AnnouncerState::Receiver& receiver) const {
  MutexLock lock(mutex_);
  return state_.LeftOut(receiver, clock_.Now());
}

void ReceiverHub::Tick() {
  KeepKnown(clock_.Now());
  FinishWaits();
  if (clock_.Now() < keepalive_at_) return;
  keepalive_at_ = clock_.Now() + limits::kKeepaliveInterval;
  for (const auto& connection : Connections()) connection->KeepaliveDue();
}

Status ReceiverHub::Forget(const std::string& receiver_id) {
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(state_.Forget(receiver_id));
    known_changed_ = true;
  }
  FinishWaits();
  return OkStatus();
}

// Receivers of the process before this one are awaited for a while: otherwise a trainer that waits
// for all receivers would go on without one that did not come back.
void ReceiverHub::Recall() {
  const TimePoint now = clock_.Now();
  await_until_ = now + limits::kReceiverReturnWait;
  look_at_ = now + kLookInterval;
  if (memory_ == nullptr) return;
  std::vector<KnownReceiver> known = memory_->Load();
  MutexLock lock(mutex_);
  for (const KnownReceiver& receiver : known) {
    state_.Remember(receiver.id, receiver.present);
    if (receiver.present) LogInfo("receiver_awaited", {{"id", receiver.id}});
  }
}

void ReceiverHub::KeepKnown(TimePoint now) {
  std::vector<std::string> given_up;
  std::map<std::string, AnnouncerState::Receiver> receivers;
  bool look = false;
  {
    MutexLock lock(mutex_);
    if (now >= await_until_) given_up = state_.StopAwaiting();
    look = memory_ != nullptr && (known_changed_ || now >= look_at_ || !given_up.empty());
    if (look) receivers = state_.receivers();
    if (look) known_changed_ = false;
  }
  for (const std::string& id : given_up) {
    LogWarning("receiver_not_returned", {{"id", id},
                                         {"seconds", limits::kReceiverReturnWait.count()},
                                         {"effect", "waits no longer include it"}});
  }
  if (memory_ == nullptr) return;
  if (look) {
    look_at_ = now + kLookInterval;
    for (const std::string& id : memory_->Look(receivers, now)) {
      LogInfo("receiver_forgotten", {{"id", id}});
      MutexLock lock(mutex_);
      known_changed_ = state_.Forget(id).ok() || known_changed_;  // fails if it is connected again
    }
  }
  memory_->Save(now);
}

// Waits.

void ReceiverHub::AddWait(Wait wait) {
  DWS_CHECK(wait.done != nullptr);
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      waits_.push_back(std::move(wait));
      wait.done = nullptr;
    }
  }
  if (wait.done != nullptr) return wait.done(UnavailableError("the sender is shutting down"), {});
  FinishWaits();
}

WaitOutcome ReceiverHub::Outcome(WaitTally tally, TimePoint now) const {
  WaitOutcome outcome{.committed = std::move(tally.committed)};
  const auto describe = [&](const std::vector<std::string>& ids,
                            std::vector<ReceiverBehind>& behind) {
    for (const std::string& id : ids) {
      const AnnouncerState::Receiver& receiver = state_.receivers().at(id);
      behind.push_back({.receiver_id = id,
                        .committed = receiver.committed,
                        .staged = receiver.staged,
                        .behind = now - receiver.behind_since.value_or(now),
                        .last_error = receiver.last_error,
                        .absent = receiver.absent_since.has_value()
                                      ? std::optional(now - *receiver.absent_since)
                                      : std::nullopt});
    }
  };
  describe(tally.missing, outcome.missing);
  describe(tally.left_out, outcome.left_out);
  describe(tally.absent, outcome.absent);
  for (std::string& id : tally.awaited) outcome.awaited.push_back(Awaited(std::move(id)));
  return outcome;
}

std::vector<ReceiverHub::Finished> ReceiverHub::TakeFinished() {
  std::vector<Finished> finished;
  const TimePoint now = clock_.Now();
  const RetainedVersionPtr newest = rank_ == nullptr ? nullptr : rank_->log->Newest();
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    // Before the version is recorded nobody can have it, whatever receivers report about its
    // number.
    const bool recorded = newest != nullptr && newest->version >= wait->version;
    const bool met = recorded && state_.Met(wait->version, wait->condition, now);
    const bool cancelled = !met && wait->cancelled();
    if (!met && !cancelled && now < wait->deadline) {
      ++wait;
      continue;
    }
    WaitOutcome outcome = Outcome(state_.Tally(wait->version, now), now);
    Status status;
    if (met) {
      outcome.met_at = state_.CommitTime(outcome.committed, wait->version);
    } else if (cancelled) {
      status = CancelledError("the trainer gave up waiting for version {}", wait->version.value());
    } else {
      status = DeadlineExceededError("version {} was not {} in time: {}", wait->version.value(),
                                     recorded ? "committed" : "recorded by this sender",
                                     DescribeUnmet(outcome, wait->condition));
    }
    finished.push_back({std::move(*wait), std::move(status), std::move(outcome)});
    wait = waits_.erase(wait);
  }
  return finished;
}

void ReceiverHub::FinishWaits() {
  std::vector<Finished> finished;
  {
    MutexLock lock(mutex_);
    if (waits_.empty()) return;
    finished = TakeFinished();
  }
  for (const Finished& over : finished) {
    if (over.status.ok()) LogLeftOut(over.wait.version, over.outcome);
    over.wait.done(over.status, over.outcome);
  }
}

}  // namespace dws
