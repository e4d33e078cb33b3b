// Which occurrence of an event is written and which is only counted. Somebody who connects ten
// thousand times, or a disk that fails at every write, must not fill the log's disk; and what
// happened must still be there: the count, and the last one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace dws {

// Occurrences that were not written, in one line.
struct RepeatCount {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  std::vector<LogField> last_fields;
  uint64_t suppressed = 0;
};

// Pure but for what it remembers: time is an argument. Threads: one at a time.
class LogRepeats {
 public:
  struct Options {
    uint32_t lines_max = 30;  // of one event and level in a window
    Duration window = std::chrono::seconds(10);
  };
  // Events are words of our code, so there are not many; with more than these at a time, all of the
  // others are written.
  static constexpr size_t kEventsMax = 256;

  explicit LogRepeats(Options options) : options_(options) {}

  // Whether to write it now. An event's window begins with its first line. Debug lines are all
  // written: who asks for them wants them.
  bool Admit(LogLevel level, std::string_view event, LogFields fields, TimePoint now);

  // What was suppressed in windows that are over at `now`. Each count is returned once.
  std::vector<RepeatCount> TakeCounts(TimePoint now);
  // The same, also of windows that are not over.
  std::vector<RepeatCount> TakeAllCounts() { return TakeCounts(TimePoint::max()); }

 private:
  struct Window {
    TimePoint end;
    uint32_t lines = 0;
    RepeatCount count;
  };

  const Options options_;
  std::map<std::pair<std::string, LogLevel>, Window> windows_;
  TimePoint first_end_ = TimePoint::max();  // no window ends before
};

}  // namespace dws
