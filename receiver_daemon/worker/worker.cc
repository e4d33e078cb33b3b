#include "receiver_daemon/worker/worker.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/worker/group_driver.h"
#include "receiver_daemon/worker/solo_driver.h"

namespace dws {

Worker::Worker(Parts parts, Options options)
    : parts_(std::move(parts)),
      preparer_(parts_.senders, parts_.sources, parts_.pool, parts_.clock, options.prepare),
      boundary_(parts_.changed),
      board_({.subscription = parts_.subscription,
              .requests = parts_.requests,
              .preparer = preparer_,
              .clock = parts_.clock,
              .on_readiness = parts_.on_readiness,
              .on_commit = parts_.on_commit,
              .on_acknowledged = parts_.on_acknowledged},
             {.staging_bytes_max = options.prepare.staging_bytes_max,
              .stale = options.stale,
              .scrub = options.scrub,
              .commit_policy = options.commit_policy}),
      engine_({.subscription = parts_.subscription,
               .registry = parts_.registry,
               .preparer = preparer_,
               .pool = parts_.pool,
               .clock = parts_.clock,
               .board = board_,
               .liveness = parts_.liveness,
               .served = parts_.served,
               .on_forget =
                   [this] {
                     driver_->DropPrepared();
                     preparer_.DropSpare();
                     watch_.Forget();
                   },
               .on_renumbered = [this] { watch_.ForgetDescriptions(); }},
              {.pause_timeout = options.pause_timeout,
               .cuda = options.cuda,
               .runs_when_proved = parts_.group == nullptr}),
      watch_({.engine = engine_,
              .subscription = parts_.subscription,
              .requests = parts_.requests,
              .preparer = preparer_,
              .pool = parts_.pool,
              .clock = parts_.clock,
              .board = board_,
              .stopping = stopping_},
             options.verify_batch_bytes, options.scrub),
      runner_({.senders = parts_.senders,
               .sources = parts_.sources,
               .ledger = parts_.ledger,
               .subscription = parts_.subscription,
               .pool = parts_.pool,
               .clock = parts_.clock,
               .preparer = preparer_,
               .engine = engine_,
               .board = board_,
               .served = parts_.served},
              options.pause_timeout),
      driver_(MakeDriver(options.commit_policy)) {}

std::unique_ptr<VersionDriver> Worker::MakeDriver(const CommitPolicy& policy) {
  if (parts_.group == nullptr) {
    return std::make_unique<SoloDriver>(SoloDriver::Parts{.subscription = parts_.subscription,
                                                          .requests = parts_.requests,
                                                          .clock = parts_.clock,
                                                          .engine = engine_,
                                                          .watch = watch_,
                                                          .runner = runner_,
                                                          .board = board_,
                                                          .boundary = boundary_},
                                        policy);
  }
  return std::make_unique<GroupDriver>(GroupDriver::Parts{.group = *parts_.group,
                                                          .subscription = parts_.subscription,
                                                          .registry = parts_.registry,
                                                          .ledger = parts_.ledger,
                                                          .requests = parts_.requests,
                                                          .clock = parts_.clock,
                                                          .engine = engine_,
                                                          .watch = watch_,
                                                          .runner = runner_,
                                                          .board = board_,
                                                          .boundary = boundary_,
                                                          .stopping = stopping_});
}

Worker::~Worker() { DWS_CHECK(!thread_.joinable()); }

void Worker::Start() {
  running_.store(true);
  thread_ = std::thread([this] { Run(); });
}

bool Worker::RequestStop(Duration grace) {
  stopping_.store(true);
  parts_.changed.Notify();
  const TimePoint deadline = parts_.clock.Now() + grace;
  Duration left = grace;
  while (running_.load() && left > Duration::zero() && grace_.Sleep(left)) {
    left = deadline - parts_.clock.Now();
  }
  return !running_.load();
}

void Worker::Join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::Run() {
  while (!stopping_.load()) {
    // Read before the state is read: a change during the step then ends the wait after it at once.
    const uint64_t seen = parts_.changed.WaitBeyond(0, Duration::zero());
    const Turn turn = RunOnce();
    if (turn.wait == Duration::zero() || stopping_.load()) continue;
    if (turn.retry) {
      AwaitRetry(seen, turn.wait);
    } else {
      (void)parts_.changed.WaitBeyond(seen, turn.wait);
    }
  }
  const Status reason = UnavailableError("the receiver is stopping");
  watch_.EndVerifies(reason);
  parts_.requests.Close(reason);
  boundary_.Close(reason);
  running_.store(false);
  grace_.Cancel();
}

Worker::Turn Worker::RunOnce() {
  const uint64_t drifts = engine_.drifts();
  const Status status = Step();
  if (stopping_.load()) return {.wait = Duration::zero()};
  if (!status.ok()) {
    LogWarning("step_failed", {{"reason", ToString(status)}});
    if (engine_.drifts() != drifts)
      return {.wait = Duration::zero()};  // repaired or paused at once
    const Duration delay = retry_delay_;
    retry_delay_ = std::min<Duration>(delay * 2, limits::kReconnectDelayMax);
    return {.wait = delay, .retry = true};
  }
  retry_delay_ = limits::kReconnectDelayMin;
  if (watch_.busy()) return {.wait = Duration::zero()};
  const Duration scrub = watch_.UntilDue().value_or(Duration::max());
  return {.wait = std::min<Duration>(limits::kReconnectDelayMax, scrub)};
}

// Waits the full delay and goes on reading memory meanwhile. Ends early if the engine has gone, as
// its memory is released at once; if a commit group waits for this member; and for new drift.
void Worker::AwaitRetry(uint64_t seen, Duration delay) {
  const TimePoint until = parts_.clock.Now() + delay;
  while (!stopping_.load() && parts_.clock.Now() < until) {
    if (engine_.weights() != nullptr && !engine_.IsCurrent()) return;
    if (driver_->has_orders()) return;
    const Duration due =
        watch_.busy() ? Duration::zero() : watch_.UntilDue().value_or(Duration::max());
    if (due > Duration::zero()) {
      const Duration left = std::max<Duration>(until - parts_.clock.Now(), Duration::zero());
      seen = parts_.changed.WaitBeyond(seen, std::min(left, due));
    } else if (Look()) {
      return;
    }
  }
}

bool Worker::Look() {
  const WorkScope work(parts_.liveness);
  return watch_.Look();
}

Status Worker::Step() {
  const WorkScope work(parts_.liveness);
  const Status status = Round();
  board_.ShowReadiness();  // a round that fails may not have reached this point
  driver_->AfterRound(status);
  preparer_.ReturnSpare();
  watch_.Look();
  return status;
}

Status Worker::Round() {
  // A version staged for a group is in flight until its leader has decided about it.
  board_.SetDrain(parts_.requests.draining() && !driver_->in_flight());
  DWS_RETURN_IF_ERROR(AcceptStream());
  return driver_->Round();
}

Status Worker::AcceptStream() {
  for (const ForgetTask& asked : parts_.requests.TakeForgets()) {
    asked.task->End(ForgetStream(asked.stream));
  }
  const std::optional<StreamId> stream = parts_.subscription.stream();
  if (!stream.has_value() || parts_.ledger.state().stream() == stream) {
    board_.SetUnrecorded("");
    return OkStatus();
  }
  LogInfo("stream_accepted", {{"stream", ToString(*stream)}});
  const Status recorded = parts_.ledger.Append(StreamAccepted{.stream = *stream});
  DWS_KILLPOINT("receiver.stream.after_record");
  // The versions of the new stream cannot be followed, and the stream before it brings no more.
  board_.SetUnrecorded(recorded.ok() ? ""
                                     : fmt::format("stream {} cannot be recorded: {}",
                                                   ToString(*stream), Message(recorded)));
  return Annotate(recorded, "recording the stream");
}

// An operator makes this receiver forget the stream that it follows: a wrong incarnation was
// accepted, or a clock went back, and the trainer that should be followed is refused as old. The
// contents of memory are proved again by the digests of a sender that is welcomed afterwards; until
// then the engine does not run.
//
// 1. the engine is paused: it runs with a version of a stream that is no longer trusted
// 2. what is known of memory is dropped
// 3. the ledger forgets, durably; an error leaves the engine to be proved against the stream it had
// 4. what is known of senders is dropped, and they are connected to again
Status Worker::ForgetStream(const StreamId& stream) {
  DWS_RETURN_IF_ERROR(CheckForgotten(parts_.ledger.state().stream(), stream));
  if (engine_.weights() != nullptr) {
    if (const Status paused = engine_.Pause(); !paused.ok()) {
      parts_.registry.EndAll(
          UnavailableError("its stream was forgotten, and it did not pause: {}", Message(paused)));
    }
    engine_.Forget();
    board_.SetReadiness(false,
                        fmt::format("the engine is paused: stream {} was forgotten by an operator; "
                                    "a sender's newest version is awaited",
                                    ToString(stream)));
  }
  driver_->BeforeForget();
  DWS_RETURN_IF_ERROR(
      Annotate(parts_.ledger.Append(StreamForgotten{.stream = stream}), "recording it"));
  driver_->AfterForget(stream);
  const std::optional<StreamId> now = parts_.ledger.state().stream();
  parts_.subscription.Forget(now);
  LogWarning("stream_forgotten", {{"stream", ToString(stream)},
                                  {"follows", now.has_value() ? ToString(*now) : "none"}});
  if (parts_.on_forgotten) parts_.on_forgotten();
  return OkStatus();
}

}  // namespace dws
