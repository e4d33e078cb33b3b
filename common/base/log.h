// The one home of spdlog. A log line is an event, one word that never changes, and its fields:
//   LogInfo("committed", {{"version", version}, {"pause_ms", pause_ms}});
// Keys are stable too: people alert on them. Nothing secret is ever a field: no token, no key, no
// weight. Whoever decides, logs; everybody else returns a Status.
//
// A line goes to stderr in one write, as log_line.h says it looks. An event that repeats too fast
// is counted instead (log_repeats.h), and one that stderr does not take is lost and counted
// (log_sink.h): logging never ends and never holds up a daemon.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace dws {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// kAuto: journal where stderr is the journal (systemd says so in JOURNAL_STREAM), else text.
enum class LogFormat { kAuto, kText, kJournal, kJson };

// One key and its value. Numbers and booleans stay what they are in JSON; doubles have six
// significant digits, and those that are no number are text.
class LogField {
 public:
  LogField(std::string_view key, std::string_view text) : key_(key), value_(text), is_text_(true) {}
  LogField(std::string_view key, const char* text) : LogField(key, std::string_view(text)) {}
  LogField(std::string_view key, const std::string& text) : LogField(key, std::string_view(text)) {}
  LogField(std::string_view key, bool value) : key_(key), value_(value ? "true" : "false") {}
  LogField(std::string_view key, double value);
  template <std::integral T>
  LogField(std::string_view key, T value) : key_(key), value_(std::to_string(value)) {}

  std::string_view key() const { return key_; }
  const std::string& value() const { return value_; }
  bool is_text() const { return is_text_; }

 private:
  std::string_view key_;  // a literal
  std::string value_;
  bool is_text_ = false;
};

using LogFields = std::initializer_list<LogField>;

// Call once in main, before any thread.
void InitLog(std::string_view program, LogLevel level, LogFormat format = LogFormat::kAuto);

// From now on. Threads: from any.
void SetLogLevel(LogLevel level);

// One line, or part of a count. `event` and the keys are literals. Threads: from any.
void LogEvent(LogLevel level, std::string_view event, LogFields fields);

// Writes the counts of repeats that are over; `all` also of those that are not. A daemon calls it
// every second or so, and with `all` at its end. Threads: from any.
void LogRepeatCounts(bool all = false);

inline void LogDebug(std::string_view event, LogFields fields = {}) {
  LogEvent(LogLevel::kDebug, event, fields);
}
inline void LogInfo(std::string_view event, LogFields fields = {}) {
  LogEvent(LogLevel::kInfo, event, fields);
}
inline void LogWarning(std::string_view event, LogFields fields = {}) {
  LogEvent(LogLevel::kWarning, event, fields);
}
inline void LogError(std::string_view event, LogFields fields = {}) {
  LogEvent(LogLevel::kError, event, fields);
}

}  // namespace dws
