// The only user of spdlog. A log line is an event, one word that never changes, and its fields:
//   LogInfo("committed", {{"version", version}, {"pause_ms", pause_ms}});
// Keys never change either: people alert on them. A field never holds a secret: no token, no key,
// no weight. The code that makes a decision logs it; all other code returns a Status.
//
// A line goes to stderr in one write, in a format of log_line.h. An event that repeats too fast is
// counted instead (log_repeats.h). A line that stderr does not take is lost and counted
// (log_sink.h). So logging never blocks or ends a daemon.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace dws {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// kAuto: kJournal if stderr is the journal (systemd says so in JOURNAL_STREAM), else kText.
enum class LogFormat { kAuto, kText, kJournal, kJson };

// One key and its value. Numbers and booleans stay numbers and booleans in JSON. Doubles have six
// significant digits; NaN and infinities become text.
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

// Call once in main, before any thread starts.
void InitLog(std::string_view program, LogLevel level, LogFormat format = LogFormat::kAuto);

// Applies to later lines. Threads: from any.
void SetLogLevel(LogLevel level);

// Writes one line, or adds to a count. `event` and the keys are literals. Threads: from any.
void LogEvent(LogLevel level, std::string_view event, LogFields fields);

// Writes the counts of windows that are over; with `all`, of all windows. A daemon calls it about
// once a second, and with `all` before it exits. Threads: from any.
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
