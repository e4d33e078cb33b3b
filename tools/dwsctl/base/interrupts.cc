#include "tools/dwsctl/base/interrupts.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace dws::dwsctl {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

Result<std::unique_ptr<Interrupts>> Interrupts::Install() {
  const sigset_t signals = Signals();
  UniqueFd descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor.valid()) return ErrnoError(errno, "signalfd");
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return std::unique_ptr<Interrupts>(new Interrupts(std::move(descriptor)));
}

Interrupts::~Interrupts() {
  // Take pending signals first: once unblocked, they would end the process.
  while (Next() != Event::kNone) {
  }
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

Interrupts::Event Interrupts::Next() {
  signalfd_siginfo received{};
  if (read(descriptor_.get(), &received, sizeof(received)) != sizeof(received)) {
    return Event::kNone;
  }
  return received.ssi_signo == SIGWINCH ? Event::kResized : Event::kEnd;
}

}  // namespace dws::dwsctl
