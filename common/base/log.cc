#include "common/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

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

// As one token of a key=value line: quoted when it is text, without anything that ends a line.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else if (c == '\'' || c == '\\') {
      out += {'\\', c};
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

void InitLog(std::string_view program, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(ToSpdlog(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

LogField::LogField(std::string_view key, double value)
    : key_(key), value_(fmt::format("{:.6g}", value)) {}

void LogEvent(LogLevel level, std::string_view event, LogFields fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    line +=
        fmt::format(" {}={}", field.key(), field.is_text() ? Quoted(field.value()) : field.value());
  }
  spdlog::log(ToSpdlog(level), "{}", line);
}

}  // namespace dws
