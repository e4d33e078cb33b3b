#include "common/base/log/log_sink.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace dws {

bool LogSink::Poll(std::chrono::milliseconds timeout) const {
  pollfd poll = {.fd = fd_, .events = POLLOUT, .revents = 0};
  return ::poll(&poll, 1, static_cast<int>(timeout.count())) == 1 &&
         (poll.revents & POLLOUT) != 0 && (poll.revents & (POLLERR | POLLNVAL)) == 0;
}

void LogSink::Write(std::string_view line) {
  std::string text = torn_ ? "\n" : "";
  text.append(line).append("\n");
  if (!Poll(stuck_ ? std::chrono::milliseconds(0) : kLogWaitMax)) {
    stuck_ = true;
    ++lost_lines_;
    return;
  }
  // None of these blocks: a pipe that polls as writable takes PIPE_BUF bytes at once, and a line is
  // never longer; a file or a terminal takes all bytes; a socket gets MSG_DONTWAIT.
  ssize_t written = ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written < 0 && errno == ENOTSOCK) written = ::write(fd_, text.data(), text.size());
  if (written <= 0) {
    stuck_ = true;
    ++lost_lines_;
    return;
  }
  stuck_ = false;
  torn_ = written < static_cast<ssize_t>(text.size());
  lost_lines_ = torn_ ? lost_lines_ + 1 : 0;
}

}  // namespace dws
