#include "tools/dwsctl/checkpoints/checkpoint_run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/formats/checkpoint/settled.h"

namespace dws::dwsctl {
namespace {

constexpr uint32_t kThreadsMax = 1024;
constexpr std::chrono::milliseconds kRedraw{100};

}  // namespace

void AddCheckpointFlags(CLI::App& command, CheckpointFlags& flags) {
  command.add_option("--threads", flags.threads, "how many to work with (default: all cores)")
      ->type_name("N")
      ->check(CLI::Validator(CLI::Range(1U, kThreadsMax)).description(""));
}

void AddProfileFlag(CLI::App& command, std::string& profile) {
  command
      .add_option("--profile", profile,
                  "fast: steps; wan: the smallest, to read with all old weights; direct: dense raw")
      ->type_name("PROFILE")
      ->check(CLI::Validator(CLI::IsMember({"fast", "wan", "direct"})).description(""))
      ->capture_default_str();
}

DeltaProfile ProfileNamed(const std::string& profile) {
  const std::optional<ProfileChoice> choice = ProfileChoiceNamed(profile);
  DWS_CHECK(choice.has_value() && Decided(*choice).has_value());
  return *Decided(*choice);
}

Result<std::unique_ptr<CheckpointRun>> CheckpointRun::Start(const CheckpointFlags& flags,
                                                            Console& console) {
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<Interrupts> interrupts, Interrupts::Install());
  const uint32_t cores = std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax);
  const uint32_t threads = flags.threads == 0 ? cores : flags.threads;
  return std::unique_ptr<CheckpointRun>(new CheckpointRun(std::move(interrupts), threads, console));
}

CheckpointRun::CheckpointRun(std::unique_ptr<Interrupts> interrupts, size_t threads,
                             Console& console)
    : interrupts_(std::move(interrupts)),
      pool_(threads - 1),
      console_(console),
      progress_([this](const checkpoint::ProgressStep& step) { return Show(step); }) {}

Status CheckpointRun::Show(const checkpoint::ProgressStep& step) {
  for (auto event = interrupts_->Next(); event != Interrupts::Event::kNone;
       event = interrupts_->Next()) {
    if (event == Interrupts::Event::kEnd) return CancelledError("interrupted");
  }
  if (!console_.error_is_terminal()) return OkStatus();
  const auto now = std::chrono::steady_clock::now();
  const auto rate = rate_.Add(step.step, step.done_bytes, now);
  if (drawn_ && now - shown_at_ < kRedraw) return OkStatus();
  v1::OperationProgress progress;
  progress.set_step(std::string(step.step));
  progress.set_done_bytes(step.done_bytes);
  progress.set_total_bytes(step.total_bytes);
  // The last column stays empty, because some terminals wrap there.
  console_.Error("\r" + FormatProgress(progress, rate, console_.columns() - 1) + "\x1b[K");
  shown_at_ = now;
  drawn_ = true;
  return OkStatus();
}

void CheckpointRun::Clear() {
  if (drawn_) console_.Error("\r\x1b[K");
  drawn_ = false;
}

ExitCode FailCheckpoint(Console& console, const Status& error) {
  Fail(console, error);
  if (absl::IsInvalidArgument(error)) return ExitCode::kUsage;
  if (absl::IsFailedPrecondition(error)) return ExitCode::kMismatch;
  if (absl::IsDataLoss(error) || absl::IsUnimplemented(error)) return ExitCode::kDamaged;
  if (absl::IsCancelled(error)) return ExitCode::kInterrupted;
  return ExitCode::kFile;
}

Result<safetensors::Checkpoint> OpenSettled(const std::string& path) {
  DWS_RETURN_IF_ERROR(checkpoint::CheckSettled(path));
  return safetensors::Checkpoint::Open(path);
}

std::string FormatCount(uint64_t count) {
  if (count < 10'000) return fmt::format("{}", count);
  double value = static_cast<double>(count) / 1000;
  for (const char unit : {'k', 'M', 'G'}) {
    // The limit is not 1000, because 999.95 would print as 1000.0.
    if (value < 999.95) {
      return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : 1, unit);
    }
    value /= 1000;
  }
  return fmt::format("{:.1f} T", value);
}

}  // namespace dws::dwsctl
