// Decides which occurrences of an event are written and which are only counted. A client that
// connects ten thousand times, or a disk that fails at every write, must not fill the log's disk.
// The log still has the count and the last occurrence.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log/log.h"

namespace dws {

// Occurrences that were not written, summed up for one line.
struct RepeatCount {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  std::vector<LogField> last_fields;
  uint64_t suppressed = 0;
};

// Reads no clock: time is an argument. Threads: one at a time.
class LogRepeats {
 public:
  struct Options {
    uint32_t lines_max = 30;  // of one event and level in a window
    Duration window = std::chrono::seconds(10);
  };
  // Events are words of our code, so there are few. With more than this number of windows at a
  // time, all occurrences of the other events are written.
  static constexpr size_t kEventsMax = 256;

  explicit LogRepeats(Options options) : options_(options) {}

  // Returns whether the caller should write the line now. An event's window begins with its first
  // line. All debug lines are written: an operator who turns them on wants every one.
  bool Admit(LogLevel level, std::string_view event, LogFields fields, TimePoint now);

  // What was suppressed in windows that are over at `now`. Each count is returned once.
  std::vector<RepeatCount> TakeCounts(TimePoint now);
  // Like TakeCounts, but also returns the counts of windows that have not ended.
  std::vector<RepeatCount> TakeAllCounts() { return TakeCounts(TimePoint::max()); }

 private:
  struct Window {
    TimePoint end;
    uint32_t lines = 0;
    RepeatCount count;
  };

  const Options options_;
  std::map<std::pair<std::string, LogLevel>, Window> windows_;
  TimePoint first_end_ = TimePoint::max();  // no window ends before this
};

}  // namespace dws
