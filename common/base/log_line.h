// How a log line looks, in three formats:
//   text     2026-11-21T16:44:10.123Z I dws-sender published version=7 reason='no space'
//   journal  <6>published version=7 reason='no space'     (the journal adds time and program)
//   json {"time":"2026-...Z","level":"info","program":"dws-sender","event":"published","version":7}
// Pure. One line whatever the values hold: what ends a line somewhere, or is no UTF-8, is escaped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log.h"

namespace dws {

// What Linux writes to a pipe at once, or not at all: lines of several processes never mix.
inline constexpr size_t kLogLineBytesMax = 4095;  // and the newline

struct LogLine {
  std::chrono::system_clock::time_point time;
  LogLevel level = LogLevel::kInfo;
  std::string_view program;
  std::string_view event;
  const std::vector<LogField>& fields;
  uint64_t suppressed = 0;  // not 0: this stands for so many, and the fields are the last one's
};

// Without a newline, at most kLogLineBytesMax bytes: long values are cut and end in "…". kAuto is
// text. A field whose key JSON uses already ("time") gets an underscore.
std::string FormatLogLine(LogFormat format, const LogLine& line);

}  // namespace dws
