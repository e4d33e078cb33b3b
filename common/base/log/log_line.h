// How a log line looks, in three formats:
//   text     2026-11-21T16:44:10.123Z I dws-sender published version=7 reason='no space'
//   journal  <6>published version=7 reason='no space'     (the journal adds time and program)
//   json     {"time":"2026-...Z","level":"info","program":"dws-sender","event":"published",
//             "version":7}                                (on one line)
// Pure. The result is always one line: control characters and bytes that are not UTF-8 are escaped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log/log.h"

namespace dws {

// Linux writes PIPE_BUF (4096) bytes to a pipe whole or not at all, so lines of several processes
// never mix.
inline constexpr size_t kLogLineBytesMax = 4095;  // without the newline

// One event of the log, before it is formatted.
struct LogLine {
  std::chrono::system_clock::time_point time;
  LogLevel level = LogLevel::kInfo;
  std::string_view program;
  std::string_view event;
  const std::vector<LogField>& fields;
  uint64_t suppressed = 0;  // not 0: this line stands for so many, with the fields of the last
};

// Returns the line without a newline. It has at most kLogLineBytesMax bytes: long values are cut
// and end in "…". kAuto means text. In JSON, a field whose key is already used ("time") gets an
// underscore.
std::string FormatLogLine(LogFormat format, const LogLine& line);

}  // namespace dws
