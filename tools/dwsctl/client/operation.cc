#include "tools/dwsctl/client/operation.h"

#include <fmt/format.h>

#include "tools/dwsctl/base/interrupts.h"
#include "tools/dwsctl/base/json.h"
#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/client/call_watchdog.h"
#include "tools/dwsctl/text/progress_text.h"

namespace dws::dwsctl {
namespace {

// Shows the progress while a call runs.
class ProgressDisplay {
 public:
  ProgressDisplay(Console& console, bool json)
      : console_(console), json_(json), redraws_(!json && console.error_is_terminal()) {}
  ~ProgressDisplay() { Clear(); }

  // False: the reader of the output has gone away.
  bool Show(const v1::OperationProgress& progress) {
    if (json_) return console_.Out(ToJsonLine(progress) + "\n");
    const auto rate =
        rate_.Add(progress.step(), progress.done_bytes(), std::chrono::steady_clock::now());
    if (redraws_) {
      // The last column stays empty, because some terminals wrap there.
      console_.Error("\r" + FormatProgress(progress, rate, console_.columns() - 1) + "\x1b[K");
      drawn_ = true;
    } else if (progress.step() != step_ && !progress.step().empty()) {
      console_.Error(Printable(progress.step(), 200) + "\n");
    }
    step_ = progress.step();
    return true;
  }

  void Clear() {
    if (drawn_) console_.Error("\r\x1b[K");
    drawn_ = false;
  }

 private:
  Console& console_;
  const bool json_;
  const bool redraws_;
  bool drawn_ = false;
  std::string step_;
  RateMeter rate_;
};

ExitCode ExplainEnd(const Status& status, CallWatchdog::Cause cause, const OperationFlags& flags,
                    const std::string& target, const std::string& after_hangup, Console& console) {
  switch (cause) {
    case CallWatchdog::Cause::kInterrupt:
      console.Error(fmt::format("dwsctl: disconnected; {}\n", after_hangup));
      return ExitCode::kInterrupted;
    case CallWatchdog::Cause::kSilence:
      return FailAnswer(console, DeadlineExceededError(
                                     "{} sent nothing for {} ms; hung up, and {}; --timeout allows "
                                     "longer silence",
                                     target, flags.target.timeout.count(), after_hangup));
    case CallWatchdog::Cause::kNone:
      break;
  }
  return FailAnswer(console, status);
}

}  // namespace

std::string OperationOutcome::Name() const {
  if (daemon.has_receiver()) return Printable(daemon.receiver().receiver_id(), 60);
  if (daemon.has_sender()) return fmt::format("sender of rank {}", daemon.sender().trainer_rank());
  return Printable(daemon.daemon(), 60);
}

OperationOutcome RunOperation(const OperationFlags& flags, const OperationRequest& request,
                              const std::string& after_hangup, Console& console) {
  OperationOutcome outcome;
  // Before the client: its threads must inherit the blocked signals.
  const auto interrupts = Interrupts::Install();
  if (!interrupts.ok()) return {.code = Fail(console, interrupts.status())};
  auto client = ConnectDaemon(flags.target);
  if (!client.ok()) return {.code = Fail(console, client.status())};
  Hangup hangup;
  auto watchdog = CallWatchdog::Start(**interrupts, hangup, flags.target.timeout);
  if (!watchdog.ok()) return {.code = Fail(console, watchdog.status())};

  auto daemon = client->FetchStatus(hangup);
  if (!daemon.ok()) {
    const bool interrupted = (*watchdog)->cause() == CallWatchdog::Cause::kInterrupt;
    return {.code = interrupted ? ExitCode::kInterrupted : FailAnswer(console, daemon.status())};
  }
  (*watchdog)->Heard();
  outcome.daemon = *std::move(daemon);

  ProgressDisplay display(console, flags.json);
  bool read = true;  // true while the reader of the output still exists
  const Status status =
      client->Operate(request, hangup, [&](const v1::OperationProgress& progress) {
        (*watchdog)->Heard();
        read = display.Show(progress);
        outcome.last = progress;
        return read && !flags.no_wait && !progress.finished();
      });
  display.Clear();
  const CallWatchdog::Cause cause = (*watchdog)->cause();
  if (outcome.last.finished() || (status.ok() && flags.no_wait) || !read) return outcome;
  const Status ended =
      status.ok() ? AbortedError("{} ended the call without a result", client->target().text)
                  : status;
  outcome.code = ExplainEnd(ended, cause, flags, client->target().text, after_hangup, console);
  return outcome;
}

void AddOperationCommands(CLI::App& app, Context& context) {
  AddVerifyCommand(app, context);
  AddResyncCommand(app, context);
  AddDrainCommand(app, context);
  AddUndrainCommand(app, context);
  AddEvictCommand(app, context);
  AddForgetStreamCommand(app, context);
  AddCommitCommand(app, context);
}

}  // namespace dws::dwsctl
