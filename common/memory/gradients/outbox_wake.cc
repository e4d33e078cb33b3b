// The flags of a socket belong to all who have it: only a flag of the call itself keeps it from
// waiting.
#include "common/memory/gradients/outbox_wake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace dws {
namespace {

constexpr std::chrono::milliseconds kWaitMax{60'000};  // of one poll, in an int

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> OutboxWake::MakePair() {
  std::array<int, 2> ends = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoError(errno, "cannot make a pair of sockets");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

void OutboxWake::Notify() const {
  const std::byte byte{};
  // Full means that the other side has not read its last byte yet, and will look after it has.
  static_cast<void>(::send(end_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

Result<bool> OutboxWake::Wait(Duration timeout) const {
  const auto wait = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(timeout),
                               std::chrono::milliseconds(0), kWaitMax);
  pollfd waiting = {.fd = end_.get(), .events = POLLIN, .revents = 0};
  const int ready = ::poll(&waiting, 1, static_cast<int>(wait.count()));
  if (ready == 0 || (ready < 0 && errno == EINTR)) return false;
  std::array<std::byte, 4096> bytes;
  const ssize_t size = ::recv(end_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size > 0) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  return UnavailableError("outbox: the other side has closed its end");
}

}  // namespace dws
