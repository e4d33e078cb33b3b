#include "common/service/program/shutdown_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/base/check.h"

namespace dws {

Result<ShutdownSignal> ShutdownSignal::Install() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGHUP);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &stop, nullptr); error != 0) {
    return ErrnoError(error, "cannot block SIGTERM, SIGINT and SIGHUP");
  }
  // When a peer hangs up while we write, the write must fail and not kill the process.
  std::signal(SIGPIPE, SIG_IGN);
  UniqueFd signals(::signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return ErrnoError(errno, "cannot make a signalfd");
  UniqueFd trigger(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!trigger.valid()) return ErrnoError(errno, "cannot make an eventfd");
  return ShutdownSignal(std::move(signals), std::move(trigger));
}

std::optional<int> ShutdownSignal::WaitFor(std::chrono::milliseconds timeout) {
  std::array<pollfd, 2> fds = {{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                {.fd = trigger_.get(), .events = POLLIN, .revents = 0}}};
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(timeout.count()));
  DWS_CHECK(ready >= 0 || errno == EINTR);
  signalfd_siginfo info;
  if (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    return static_cast<int>(info.ssi_signo);
  }
  uint64_t count;
  if (::read(trigger_.get(), &count, sizeof(count)) == sizeof(count)) return 0;
  return std::nullopt;
}

void ShutdownSignal::Trigger() {
  const uint64_t one = 1;
  // Fails only when the counter is full; then it is already triggered.
  static_cast<void>(::write(trigger_.get(), &one, sizeof(one)) == sizeof(one));
}

}  // namespace dws
