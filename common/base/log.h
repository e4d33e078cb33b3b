// The one home of spdlog. A log line is an event and its stable keys:
//   LogInfo("committed version={} pause_ms={:.2f}", version, pause_ms);
// Whoever decides, logs; everybody else returns a Status.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace dws {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Call once in main, before any thread. Logs go to stderr.
void InitLog(std::string_view program, LogLevel level);
void LogLine(LogLevel level, std::string_view line);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dws
