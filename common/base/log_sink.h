// Writes log lines to a descriptor that others share, read slowly, or have closed. A daemon must
// not wait for its log: when the other side takes nothing for kLogWaitMax, lines are lost, and
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
  explicit LogSink(int fd) : fd_(fd) {}  // not owned; never made non-blocking: others share it

  // The line and a newline, or nothing. After a line was lost, the next ones do not wait until one
  // is taken again.
  void Write(std::string_view line);

  // Whether a line would be taken at once.
  bool Ready() const { return Poll(std::chrono::milliseconds(0)); }
  // Lost since the last line that was written.
  uint64_t lost_lines() const { return lost_lines_; }

 private:
  bool Poll(std::chrono::milliseconds timeout) const;

  const int fd_;
  bool stuck_ = false;
  bool torn_ = false;  // the last line was written in part
  uint64_t lost_lines_ = 0;
};

}  // namespace dws
