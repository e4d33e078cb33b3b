#include "common/base/log/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/log/log_line.h"
#include "common/base/log/log_repeats.h"
#include "common/base/log/log_sink.h"
#include "common/base/threads/mutex.h"

namespace dws {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Passes finished lines to a LogSink. Logger holds its lock meanwhile.
class LineSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  LogSink& sink() { return sink_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    sink_.Write({message.payload.data(), message.payload.size()});
  }
  void flush_() override {}

  LogSink sink_{STDERR_FILENO};
};

// systemd sets JOURNAL_STREAM to the device and inode of the journal it connects stderr to.
bool StderrIsJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat file = {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &file) != 0) return false;
  return stream == fmt::format("{}:{}", file.st_dev, file.st_ino);
}

// The log of this process. Threads: safe from any.
class Logger {
 public:
  void Init(std::string_view program, LogLevel level, LogFormat format) {
    MutexLock lock(mutex_);
    program_ = program;
    format_ = format == LogFormat::kAuto
                  ? (StderrIsJournal() ? LogFormat::kJournal : LogFormat::kText)
                  : format;
    sink_ = std::make_shared<LineSink>();
    spdlog_ = std::make_shared<spdlog::logger>(program_, sink_);
    spdlog_->set_level(ToSpdlog(level));
  }
  void SetLevel(LogLevel level) {
    MutexLock lock(mutex_);
    if (spdlog_ != nullptr) spdlog_->set_level(ToSpdlog(level));
  }
  void Log(LogLevel level, std::string_view event, LogFields fields) {
    const TimePoint now = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    // Nothing is logged before InitLog is called. Unit tests do not call it.
    if (spdlog_ == nullptr || !spdlog_->should_log(ToSpdlog(level))) return;
    WriteCounts(repeats_.TakeCounts(now));
    if (repeats_.Admit(level, event, fields, now)) Write(level, event, {fields}, 0);
  }
  void WriteCounts(bool all) {
    MutexLock lock(mutex_);
    if (spdlog_ == nullptr) return;
    WriteCounts(all ? repeats_.TakeAllCounts()
                    : repeats_.TakeCounts(std::chrono::steady_clock::now()));
  }

 private:
  void WriteCounts(const std::vector<RepeatCount>& counts) REQUIRES(mutex_) {
    for (const RepeatCount& count : counts) {
      Write(count.level, count.event, count.last_fields, count.suppressed);
    }
  }
  void Write(LogLevel level, std::string_view event, const std::vector<LogField>& fields,
             uint64_t suppressed) REQUIRES(mutex_) {
    if (const uint64_t lost = sink_->sink().lost_lines(); lost > 0 && sink_->sink().Ready()) {
      WriteLine(LogLevel::kWarning, "log_lines_lost", {{"lines", lost}}, 0);
    }
    WriteLine(level, event, fields, suppressed);
  }
  void WriteLine(LogLevel level, std::string_view event, const std::vector<LogField>& fields,
                 uint64_t suppressed) REQUIRES(mutex_) {
    const std::string line = FormatLogLine(format_, {.time = std::chrono::system_clock::now(),
                                                     .level = level,
                                                     .program = program_,
                                                     .event = event,
                                                     .fields = fields,
                                                     .suppressed = suppressed});
    spdlog_->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  }

  Mutex mutex_;
  std::string program_ GUARDED_BY(mutex_);
  LogFormat format_ GUARDED_BY(mutex_) = LogFormat::kText;
  std::shared_ptr<LineSink> sink_ GUARDED_BY(mutex_);
  std::shared_ptr<spdlog::logger> spdlog_ GUARDED_BY(mutex_);
  LogRepeats repeats_ GUARDED_BY(mutex_){LogRepeats::Options{}};
};

Logger& TheLogger() {
  static Logger* const logger = new Logger;  // never deleted: threads may log until the end
  return *logger;
}

}  // namespace

LogField::LogField(std::string_view key, double value)
    : key_(key), value_(fmt::format("{:.6g}", value)), is_text_(!std::isfinite(value)) {}

void InitLog(std::string_view program, LogLevel level, LogFormat format) {
  TheLogger().Init(program, level, format);
}

void SetLogLevel(LogLevel level) { TheLogger().SetLevel(level); }

void LogEvent(LogLevel level, std::string_view event, LogFields fields) {
  TheLogger().Log(level, event, fields);
}

void LogRepeatCounts(bool all) { TheLogger().WriteCounts(all); }

}  // namespace dws
