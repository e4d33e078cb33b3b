#include "common/base/log_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <optional>

namespace dws {
namespace {

constexpr std::string_view kCut = "…";
constexpr size_t kValueBytesMax = 3072;

// The code point that begins at `at`, and its length; nullopt where the bytes are no UTF-8 (too
// long a form and surrogates included).
struct CodePoint {
  uint32_t value = 0;
  size_t size_bytes = 0;
};
std::optional<CodePoint> Decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return CodePoint{.value = lead, .size_bytes = 1};
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < size) return std::nullopt;
  uint32_t value = lead & (0xffU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return std::nullopt;
    value = value << 6 | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[size] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    return std::nullopt;
  }
  return CodePoint{.value = value, .size_bytes = size};
}

// C0 and C1 controls, DEL, separators of lines and paragraphs, and marks of direction and invisible
// joiners, with which a name can pretend to be another.
bool IsControl(uint32_t code_point) {
  const auto within = [code_point](uint32_t first, uint32_t last) {
    return code_point >= first && code_point <= last;
  };
  return within(0, 0x1f) || within(0x7f, 0x9f) || code_point == 0x61c || within(0x200b, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2060, 0x206f) || code_point == 0xfeff;
}

// Of the format's string, between `quote`s.
std::string Escaped(std::string_view text, char quote, bool json, size_t size_bytes_max) {
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    if (out.size() + kCut.size() + 8 > size_bytes_max) {
      out += kCut;
      break;
    }
    const std::optional<CodePoint> point = Decode(text, at);
    if (!point.has_value()) {
      out += json ? std::string("\\ufffd")
                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
      ++at;
      continue;
    }
    if (IsControl(point->value)) {
      out += json || point->value > 0xff ? fmt::format("\\u{:04x}", point->value)
                                         : fmt::format("\\x{:02x}", point->value);
    } else if (text[at] == quote || text[at] == '\\') {
      out += {'\\', text[at]};
    } else {
      out += text.substr(at, point->size_bytes);
    }
    at += point->size_bytes;
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
  // Shorter values until the line fits; keys and numbers alone always do.
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
