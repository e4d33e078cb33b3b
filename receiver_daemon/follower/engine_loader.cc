#include "receiver_daemon/follower/engine_loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kCheckInterval{5};
constexpr std::chrono::minutes kCheckIntervalMax{10};
constexpr std::chrono::seconds kCheckDeadline{2};

}  // namespace

EngineLoader::EngineLoader(MakeControl make_control, OnHolds on_holds, Duration timeout,
                           const Clock& clock)
    : make_control_(std::move(make_control)),
      on_holds_(std::move(on_holds)),
      timeout_(timeout),
      clock_(clock),
      check_interval_(kCheckInterval) {
  DWS_CHECK(make_control_ != nullptr && on_holds_ != nullptr);
}

void EngineLoader::SetHolds(std::optional<uint64_t> version) {
  holds_ = version;
  on_holds_(version);
}

void EngineLoader::Forget() {
  SetHolds(std::nullopt);
  may_read_ = true;
}

Result<Duration> EngineLoader::Load(uint64_t version) {
  if (!holds_.has_value()) may_read_ = true;  // it may have restarted meanwhile
  if (control_ == nullptr) {
    DWS_ASSIGN_OR_RETURN(control_, make_control_());
  }
  const TimePoint begin = clock_.Now();
  const Status status = LoadPaused(version);
  if (!status.ok()) {
    control_.reset();  // after a restart it may be another kind of engine, or build
    return status;
  }
  DWS_CHECK(!holds_.has_value() && may_read_);  // forgotten when the load began
  may_read_ = false;
  SetHolds(version);
  const TimePoint end = clock_.Now();
  check_at_ = end + check_interval_;
  return end - begin;
}

Status EngineLoader::LoadPaused(uint64_t version) {
  DWS_CHECK(control_ != nullptr);
  // Versions of a folder have no stream and no state token.
  const auto resume = [this](uint64_t holds) {
    return control_->Resume({.stream = {}, .version = WeightVersion(holds), .state_token = {}});
  };
  if (const Status paused = control_->Pause(timeout_); !paused.ok()) {
    // An engine that may hold parts of two versions is not resumed; the next load pauses it again.
    if (!holds_.has_value()) return paused;
    const Status resumed = resume(*holds_);
    if (resumed.ok()) return paused;
    Forget();  // whether it runs is unknown too
    return Annotate(resumed, fmt::format("after '{}'", Message(paused)));
  }
  DWS_KILLPOINT("follow.after_pause");
  Forget();
  const Status loaded = control_->PostCommit(WeightVersion(version), timeout_);
  // An engine that refuses the load is not reading. After any other error it may be.
  if (absl::IsFailedPrecondition(loaded)) may_read_ = false;
  DWS_RETURN_IF_ERROR(loaded);
  DWS_KILLPOINT("follow.after_load");
  return resume(version);
}

Status EngineLoader::Check() {
  const TimePoint now = clock_.Now();
  if (!holds_.has_value() || control_ == nullptr || now < check_at_) return OkStatus();
  DWS_CHECK(!may_read_);  // the load of what it holds has ended
  const Status same = control_->Check(WeightVersion(*holds_), kCheckDeadline);
  // If somebody else loads versions into this engine too, do not pause it every few seconds.
  check_interval_ = absl::IsFailedPrecondition(same)
                        ? std::min<Duration>(2 * check_interval_, kCheckIntervalMax)
                        : Duration(kCheckInterval);
  check_at_ = now + check_interval_;
  // An engine that only answers slowly still holds its version.
  if (!absl::IsUnavailable(same) && !absl::IsFailedPrecondition(same)) return OkStatus();
  const uint64_t held = *holds_;
  control_.reset();
  Forget();
  return Annotate(same, fmt::format("the engine had loaded version {}", held));
}

}  // namespace dws
