// Writes log lines to a descriptor that others may share, read slowly, or have closed. A daemon
// must not wait for its log: when the other side takes nothing for kLogWaitMax, lines are lost and
// counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace dws {

inline constexpr std::chrono::milliseconds kLogWaitMax{50};

// Needs SIGPIPE to be ignored. Threads: one at a time.
class LogSink {
 public:
  explicit LogSink(int fd) : fd_(fd) {}  // not owned; stays blocking, because others share it

  // Writes the line and a newline, or loses the line. After a loss it does not wait at all, until
  // the descriptor takes a line again.
  void Write(std::string_view line);

  // Returns whether the descriptor would take a line at once.
  bool Ready() const { return Poll(std::chrono::milliseconds(0)); }
  // Lines lost since the last one that was written whole.
  uint64_t lost_lines() const { return lost_lines_; }

 private:
  bool Poll(std::chrono::milliseconds timeout) const;

  const int fd_;
  bool stuck_ = false;
  bool torn_ = false;  // the last line was written only in part
  uint64_t lost_lines_ = 0;
};

}  // namespace dws
