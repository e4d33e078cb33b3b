#include "tools/dwsctl/client/call_watchdog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace dws::dwsctl {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

Result<std::unique_ptr<CallWatchdog>> CallWatchdog::Start(Interrupts& interrupts, Hangup& hangup,
                                                          milliseconds silence_max) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoError(errno, "eventfd");
  return std::unique_ptr<CallWatchdog>(
      new CallWatchdog(std::move(stop), interrupts, hangup, silence_max));
}

CallWatchdog::CallWatchdog(UniqueFd stop, Interrupts& interrupts, Hangup& hangup,
                           milliseconds silence_max)
    : stop_(std::move(stop)),
      interrupts_(interrupts),
      hangup_(hangup),
      silence_max_(silence_max),
      heard_(steady_clock::now()),
      thread_([this] { Run(); }) {}

CallWatchdog::~CallWatchdog() {
  // An eventfd and not a flag: the thread waits in poll, also for signals.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void CallWatchdog::Heard() { heard_ = steady_clock::now(); }

void CallWatchdog::Run() {
  while (true) {
    const auto left =
        duration_cast<milliseconds>(heard_.load() + silence_max_ - steady_clock::now());
    std::array<pollfd, 2> events = {{{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                     {.fd = interrupts_.fd(), .events = POLLIN, .revents = 0}}};
    const int ready = poll(events.data(), events.size(),
                           static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 3'600'000)));
    if (events[0].revents != 0) return;
    if (ready > 0 && interrupts_.Next() == Interrupts::Event::kEnd) {
      cause_ = Cause::kInterrupt;
    } else if (ready == 0 && steady_clock::now() >= heard_.load() + silence_max_) {
      cause_ = Cause::kSilence;
    } else {
      continue;
    }
    hangup_.HangUp();
    return;
  }
}

}  // namespace dws::dwsctl
