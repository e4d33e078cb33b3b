#include "common/base/log/log_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace dws {
namespace {

constexpr std::string_view kCut = "…";
constexpr size_t kValueBytesMax = 3072;

// `text` between `quote`s, escaped as JSON or as C and cut to `size_bytes_max`.
std::string Escaped(std::string_view text, char quote, bool json, size_t size_bytes_max) {
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    if (out.size() + kCut.size() + 8 > size_bytes_max) {
      out += kCut;
      break;
    }
    const auto [code_point, size_bytes] = FirstUtf8Character(text.substr(at));
    if (size_bytes == 0) {
      out += json ? std::string("\\ufffd")
                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
      ++at;
      continue;
    }
    if (IsUnprintable(code_point)) {
      const auto value = static_cast<uint32_t>(code_point);
      out +=
          json || value > 0xff ? fmt::format("\\u{:04x}", value) : fmt::format("\\x{:02x}", value);
    } else if (text[at] == quote || text[at] == '\\') {
      out += {'\\', text[at]};
    } else {
      out += text.substr(at, size_bytes);
    }
    at += size_bytes;
  }
  return out + quote;
}

std::string TimeText(std::chrono::system_clock::time_point time) {
  using std::chrono::milliseconds;
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(static_cast<std::time_t>(seconds.count())),
                     std::chrono::duration_cast<milliseconds>(since - seconds).count());
}

struct LevelNames {
  std::string_view json;
  char text;
  int priority;  // of syslog
};
LevelNames NamesOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return {"debug", 'D', 7};
    case LogLevel::kInfo:
      return {"info", 'I', 6};
    case LogLevel::kWarning:
      return {"warning", 'W', 4};
    case LogLevel::kError:
      return {"error", 'E', 3};
  }
  return {"info", 'I', 6};
}

bool IsReserved(std::string_view key) {
  for (const std::string_view name : {"time", "level", "program", "event", "suppressed"}) {
    if (key == name) return true;
  }
  return false;
}

std::string Json(const LogLine& line, size_t value_bytes_max) {
  std::string out =
      fmt::format(R"({{"time":"{}","level":"{}","program":{},"event":{})", TimeText(line.time),
                  NamesOf(line.level).json, Escaped(line.program, '"', true, value_bytes_max),
                  Escaped(line.event, '"', true, value_bytes_max));
  for (const LogField& field : line.fields) {
    out += fmt::format(
        R"(,"{}{}":{})", field.key(), IsReserved(field.key()) ? "_" : "",
        field.is_text() ? Escaped(field.value(), '"', true, value_bytes_max) : field.value());
  }
  if (line.suppressed > 0) out += fmt::format(R"(,"suppressed":{})", line.suppressed);
  return out + "}";
}

std::string KeyValue(LogFormat format, const LogLine& line, size_t value_bytes_max) {
  const LevelNames level = NamesOf(line.level);
  std::string out =
      format == LogFormat::kJournal
          ? fmt::format("<{}>{}", level.priority, line.event)
          : fmt::format("{} {} {} {}", TimeText(line.time), level.text, line.program, line.event);
  for (const LogField& field : line.fields) {
    out += fmt::format(
        " {}={}", field.key(),
        field.is_text() ? Escaped(field.value(), '\'', false, value_bytes_max) : field.value());
  }
  if (line.suppressed > 0) out += fmt::format(" suppressed={}", line.suppressed);
  return out;
}

}  // namespace

std::string FormatLogLine(LogFormat format, const LogLine& line) {
  // Halves the longest value allowed until the line fits, then leaves the fields out.
  for (size_t value_bytes_max = kValueBytesMax; value_bytes_max >= 16; value_bytes_max /= 2) {
    std::string out = format == LogFormat::kJson ? Json(line, value_bytes_max)
                                                 : KeyValue(format, line, value_bytes_max);
    if (out.size() <= kLogLineBytesMax) return out;
  }
  const std::vector<LogField> none;
  return FormatLogLine(format, {.time = line.time,
                                .level = line.level,
                                .program = line.program,
                                .event = line.event,
                                .fields = none,
                                .suppressed = line.suppressed});
}

}  // namespace dws
