#include "receiver_daemon/follower/engine_loader.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/formats/slime_delta/digest/checksum.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kCheckInterval{5};
constexpr std::chrono::minutes kCheckIntervalMax{10};
constexpr std::chrono::seconds kCheckDeadline{2};
// A model that an engine has half loaded may refuse every load after that.
constexpr uint32_t kRefusalsMax = 3;
// In the record, in place of the contents: of an engine that has to be restarted.
constexpr std::string_view kNeedsRestart = "restart";

}  // namespace

EngineLoader::EngineLoader(Parts parts, Duration timeout)
    : parts_(std::move(parts)), timeout_(timeout), check_interval_(kCheckInterval) {
  DWS_CHECK(parts_.make_control != nullptr && parts_.on_holds != nullptr);
  const std::optional<CheckpointVersion> record = parts_.record.Read();
  needs_restart_ = record.has_value() && record->contents == kNeedsRestart;
}

std::optional<uint64_t> EngineLoader::holds() const {
  if (!holds_.has_value()) return std::nullopt;
  return holds_->version;
}

void EngineLoader::SetHolds(std::optional<CheckpointVersion> version) {
  if (!version.has_value() || !holds_.has_value() || version->contents != holds_->contents) {
    checksum_.reset();
  }
  holds_ = std::move(version);
  parts_.on_holds(holds());
}

void EngineLoader::Forget() {
  SetHolds(std::nullopt);
  may_read_ = true;
}

Result<std::optional<Duration>> EngineLoader::Load(const CheckpointVersion& version) {
  if (!holds_.has_value()) may_read_ = true;  // it may have restarted meanwhile
  DWS_RETURN_IF_ERROR(Connect());
  Result<bool> already = HoldsAlready(version);
  Status status = already.status();
  TimePoint paused_since;
  if (status.ok() && !*already) status = LoadPaused(version, paused_since);
  if (!status.ok()) {
    control_.reset();  // after a restart it may be another kind of engine, or build
    return status;
  }
  may_read_ = false;
  SetHolds(version);
  parts_.record.Write(version);
  const TimePoint end = parts_.clock.Now();
  check_at_ = end + check_interval_;
  if (*already) return std::optional<Duration>();
  return std::optional<Duration>(end - paused_since);
}

Status EngineLoader::Connect() {
  if (control_ != nullptr) return OkStatus();
  Result<std::unique_ptr<EngineControl>> made = parts_.make_control();
  if (absl::IsUnavailable(made.status())) {  // the engine is gone: the next one has refused nothing
    refusals_ = 0;
    if (needs_restart_) DWS_RETURN_IF_ERROR(parts_.record.Remove());
    needs_restart_ = false;
  }
  DWS_RETURN_IF_ERROR(made.status());
  if (needs_restart_) {
    return FailedPreconditionError(
        "restart the engine: it has refused a load, and late replies of its workers may be taken "
        "for replies to the next one. It stays paused, and no load is tried until the receiver has "
        "seen that it is gone");
  }
  control_ = *std::move(made);
  return OkStatus();
}

Result<bool> EngineLoader::HoldsAlready(const CheckpointVersion& version) {
  DWS_CHECK(control_ != nullptr);
  const bool known = holds_.has_value();
  const std::optional<CheckpointVersion> held = known ? holds_ : parts_.record.Read();
  if (!held.has_value() || held->contents != version.contents) return false;
  if (known && held->version == version.version) return true;
  // It may have been restarted since the record, or the last check. A call that fails is answered
  // by a load.
  const Status says = control_->Reports(WeightVersion(held->version), kCheckDeadline);
  if (!says.ok() && !(known && absl::IsUnimplemented(says))) {
    if (!absl::IsDeadlineExceeded(says)) Forget();  // an engine that is only slow still holds it
    return false;
  }
  if (!known) LogInfo("engine_holds_version", {{"version", held->version}});
  if (held->version == version.version) return true;
  const Status told = control_->Tell(WeightVersion(version.version), timeout_);
  // An engine that cannot be told a version without loading it reports the old one.
  if (absl::IsFailedPrecondition(told)) return false;
  DWS_RETURN_IF_ERROR(told);
  return true;
}

Status EngineLoader::LoadPaused(const CheckpointVersion& version, TimePoint& paused_since) {
  DWS_CHECK(control_ != nullptr);
  // Versions of a folder have no stream and no state token.
  const auto resume = [this](uint64_t holds) {
    return control_->Resume({.stream = {}, .version = WeightVersion(holds), .state_token = {}});
  };
  // The record goes first: otherwise, if this process died while the engine is paused, the next
  // process would leave the engine paused.
  DWS_RETURN_IF_ERROR(parts_.record.Remove());
  if (const Status paused = control_->Pause(timeout_); !paused.ok()) {
    // An engine that may hold parts of two versions is not resumed; the next load pauses it again.
    if (!holds_.has_value()) return paused;
    const Status resumed = resume(holds_->version);
    if (resumed.ok()) {
      parts_.record.Write(*holds_);
      return paused;
    }
    Forget();  // whether it runs is unknown too
    return Annotate(resumed, fmt::format("after '{}'", Message(paused)));
  }
  DWS_KILLPOINT("follow.after_pause");
  paused_since = parts_.clock.Now();
  Forget();
  const Status loaded = control_->PostCommit(WeightVersion(version.version), timeout_);
  // An engine that refuses the load is not reading. After any other error it may be.
  if (loaded.ok() || absl::IsFailedPrecondition(loaded)) may_read_ = false;
  if (absl::IsAborted(loaded)) {
    needs_restart_ = true;
    parts_.record.Write({.version = version.version, .contents = std::string(kNeedsRestart)});
    LogError("engine_needs_restart", {{"refusals", 1}, {"reason", Message(loaded)}});
    return Annotate(loaded, "restart the engine");
  }
  DWS_RETURN_IF_ERROR(CountRefusal(loaded));
  DWS_RETURN_IF_ERROR(control_->Tell(WeightVersion(version.version), timeout_));
  DWS_KILLPOINT("follow.after_load");
  return resume(version.version);
}

Status EngineLoader::CountRefusal(const Status& loaded) {
  if (!absl::IsFailedPrecondition(loaded)) {
    refusals_ = 0;
    return loaded;
  }
  if (++refusals_ < kRefusalsMax) return loaded;
  if (refusals_ == kRefusalsMax) {
    LogError("engine_needs_restart", {{"refusals", refusals_}, {"reason", Message(loaded)}});
  }
  return MakeStatus(
      loaded.code(),
      fmt::format("restart the engine: it has refused at least {} loads in a row, and a load that "
                  "failed can leave its model unable to take another: {}",
                  kRefusalsMax, Message(loaded)));
}

Result<std::string> EngineLoader::Verify() {
  if (!holds_.has_value() || control_ == nullptr) {
    return UnimplementedError("the engine holds no version that is known");
  }
  DWS_ASSIGN_OR_RETURN(const std::string sums, control_->Checksum(timeout_));
  const std::string now =
      slime::ChecksumText(slime::ChecksumFormat::kXxh3, std::as_bytes(std::span(sums)));
  if (checksum_.has_value() && *checksum_ != now) {
    return DataLossError(
        "the engine's checksum of its weights is {}, and was {} when it was first asked with "
        "version {}: something else has written its weights. Restart it",
        now, *checksum_, holds_->version);
  }
  checksum_ = now;
  return now;
}

Status EngineLoader::Check() {
  const TimePoint now = parts_.clock.Now();
  if (!holds_.has_value() || control_ == nullptr || now < check_at_) return OkStatus();
  DWS_CHECK(!may_read_);  // the engine no longer loads the version it holds
  const Status same = control_->Check(WeightVersion(holds_->version), kCheckDeadline);
  // If another program also loads versions into this engine, the checks become rarer, so that the
  // engine is not paused every few seconds.
  check_interval_ = absl::IsFailedPrecondition(same)
                        ? std::min<Duration>(2 * check_interval_, kCheckIntervalMax)
                        : Duration(kCheckInterval);
  check_at_ = now + check_interval_;
  // An engine that only answers slowly still holds its version.
  if (!absl::IsUnavailable(same) && !absl::IsFailedPrecondition(same)) return OkStatus();
  const uint64_t held = holds_->version;
  control_.reset();
  Forget();
  // It had another version: another program loads into it, so its reports prove nothing.
  if (absl::IsFailedPrecondition(same)) DWS_RETURN_IF_ERROR(parts_.record.Remove());
  return Annotate(same, fmt::format("the engine had loaded version {}", held));
}

}  // namespace dws
