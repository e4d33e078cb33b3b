#include "receiver_daemon/engine/engine_lease.h"

#include <utility>

#include "common/base/check.h"

namespace dws {

EngineLease::State EngineLease::state() const {
  MutexLock lock(mutex_);
  return state_;
}

Duration EngineLease::stopped_for() const {
  MutexLock lock(mutex_);
  return stopped_for_;
}

Status EngineLease::CheckDrained(const char* what, bool devices_drained) const {
  if (!needs_.drained_devices || devices_drained) return OkStatus();
  return FailedPreconditionError(
      "engine rank {} has GPU memory attached and {} without having drained its devices: it could "
      "compute with half a commit. Its client has to synchronize them",
      engine_rank_, what);
}

Status EngineLease::Open(Stream stream, bool devices_drained) {
  DWS_RETURN_IF_ERROR(CheckDrained("opened its lease", devices_drained));
  MutexLock lock(mutex_);
  if (state_ == State::kEnded) return end_reason_;
  if (state_ != State::kUnopened) {
    return FailedPreconditionError(
        "the lease of engine rank {}, generation {}, is open already; attach again", engine_rank_,
        generation_.value());
  }
  DWS_CHECK(stream.send != nullptr && stream.end != nullptr);
  state_ = needs_.request ? State::kRunning : State::kPaused;
  stream_ = std::move(stream);
  return OkStatus();
}

void EngineLease::OnPaused(const PauseAnswer& answer) {
  if (answer.generation != generation_) {
    return End(
        FailedPreconditionError("engine rank {} answered a pause with generation {}, expected {}",
                                engine_rank_, answer.generation.value(), generation_.value()));
  }
  const Status drained = CheckDrained("answered a pause", answer.devices_drained);
  if (!drained.ok()) return End(drained);
  MutexLock lock(mutex_);
  // This may be the late answer to a pause that was given up: the rank reads its Resume next.
  if (state_ != State::kPausing || answer.pause_id != pause_id_) return;
  DWS_CHECK(pause_id_ > 0);
  state_ = State::kPaused;
  stopped_for_ = answer.stopped_for;
  changed_.NotifyAll();
}

void EngineLease::OnPostCommitDone(uint64_t pause_id, std::string error) {
  MutexLock lock(mutex_);
  if (state_ != State::kPaused || pause_id != pause_id_) return;
  hook_result_ = std::move(error);
  changed_.NotifyAll();
}

void EngineLease::OnCommitRequest(const CommitRequest& request) {
  MutexLock lock(mutex_);
  request_.reset();
  if (request.version.value() > 0) request_ = request;
}

bool EngineLease::MayCommit(const Commit& commit) const {
  MutexLock lock(mutex_);
  // A rank that is paused because a commit gave up before it wrote has its own weights still.
  if (!needs_.request || writing_) return true;
  if (!request_.has_value()) return false;
  const std::optional<VersionAt>& live = commit.live;
  const bool reached = live.has_value() && live->version >= request_->version &&
                       live->stream == request_->stream.value_or(commit.target.stream);
  return !reached;
}

void EngineLease::OnWriteBegin(const TensorContents& contents) {
  std::vector<uint64_t> of_views;
  for (const std::string& tensor : needs_.tensors) {
    const auto found = contents.find(tensor);
    if (found == contents.end()) {
      of_views.clear();  // not known
      break;
    }
    of_views.push_back(found->second);
  }
  MutexLock lock(mutex_);
  writing_ = true;
  contents_ = std::move(of_views);
}

void EngineLease::End(const Status& reason) {
  Stream stream;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    end_reason_ =
        reason.ok() ? UnavailableError("engine rank {} gave up its lease", engine_rank_) : reason;
    DWS_CHECK(!end_reason_.ok());  // Open returns it as an error
    stream = std::exchange(stream_, {});
    changed_.NotifyAll();
  }
  if (stream.end) stream.end(reason);
}

void EngineLease::RequestPause() {
  std::function<void(const LeaseCommand&)> send;
  PauseCommand command;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kRunning) return;  // already paused or pausing, unopened, or ended
    state_ = State::kPausing;
    command.pause_id = ++pause_id_;
    send = stream_.send;
  }
  send(command);
}

Status EngineLease::Await(TimePoint deadline, const Clock& clock, const char* what,
                          const std::function<bool()>& done) {
  MutexLock lock(mutex_);
  while (true) {
    if (state_ == State::kEnded) {
      return UnavailableError("engine rank {} is gone: {}", engine_rank_, Message(end_reason_));
    }
    if (done()) return OkStatus();
    const Duration left = deadline - clock.Now();
    if (left <= Duration::zero()) {
      return DeadlineExceededError("engine rank {} did not {} in time", engine_rank_, what);
    }
    changed_.WaitFor(mutex_, left);
  }
}

Status EngineLease::AwaitPaused(TimePoint deadline, const Clock& clock) {
  return Await(deadline, clock, "pause",
               [this]() NO_THREAD_SAFETY_ANALYSIS { return state_ == State::kPaused; });
}

void EngineLease::RequestPostCommit(WeightVersion version) {
  std::function<void(const LeaseCommand&)> send;
  DWS_CHECK(needs_.post_commit);
  PostCommitCommand command{.pause_id = 0, .version = version, .contents = {}};
  {
    MutexLock lock(mutex_);
    if (state_ != State::kPaused) return;
    hook_result_.reset();
    command.pause_id = ++pause_id_;  // so a late answer to an earlier hook is ignored
    command.contents = contents_;
    send = stream_.send;
  }
  send(command);
}

Status EngineLease::AwaitPostCommit(TimePoint deadline, const Clock& clock) {
  if (!has_hook()) return OkStatus();
  DWS_RETURN_IF_ERROR(Await(deadline, clock, "rebuild its derived tensors",
                            [this]()
                                NO_THREAD_SAFETY_ANALYSIS { return hook_result_.has_value(); }));
  MutexLock lock(mutex_);
  if (!hook_result_.has_value() || hook_result_->empty()) return OkStatus();
  return FailedPreconditionError("the post-commit hook of engine rank {} failed: {}", engine_rank_,
                                 *hook_result_);
}

void EngineLease::Resume(const EngineVersion& version) {
  std::function<void(const LeaseCommand&)> send;
  ResumeCommand command{.pause_id = 0, .version = version};
  {
    MutexLock lock(mutex_);
    if (state_ == State::kEnded || state_ == State::kUnopened) return;
    state_ = State::kRunning;
    writing_ = false;
    command.pause_id = pause_id_;
    send = stream_.send;
  }
  send(command);
}

}  // namespace dws
