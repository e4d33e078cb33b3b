#include "tools/dwsctl/text/text_table.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "common/base/check.h"
#include "tools/dwsctl/base/printable.h"

namespace dws::dwsctl {
namespace {

size_t LastFilled(const std::string& line) {
  const size_t last = line.find_last_not_of(' ');
  return last == std::string::npos ? 0 : last + 1;
}

std::string FormatRow(const std::vector<Column>& columns, const std::vector<size_t>& widths,
                      const std::vector<std::string>& cells, size_t indent) {
  std::string line(indent, ' ');
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) line += "  ";
    line += Padded(cells[i], widths[i], columns[i].left);
  }
  line.resize(LastFilled(line));
  return line + "\n";
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // The limit is not 1024, because 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.99995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<uint64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string FormatShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string FormatRatio(uint64_t whole, uint64_t part) {
  if (whole == 0 || part == 0) return "-";
  const double ratio = static_cast<double>(whole) / static_cast<double>(part);
  return ratio < 9.95 ? fmt::format("{:.1f}x", ratio) : fmt::format("{:.0f}x", ratio);
}

std::string FormatVersion(uint64_t version) {
  return version == 0 ? "-" : fmt::format("{}", version);
}

std::string FormatUnixTime(double unix_seconds) {
  if (!std::isfinite(unix_seconds) || unix_seconds <= 0 || unix_seconds > 253402300799.0) {
    return "-";
  }
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", utc);
}

std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t indent) {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (const Column& column : columns) {
    titles.emplace_back(column.title);
    widths.push_back(column.title.size());
  }
  for (const std::vector<std::string>& row : rows) {
    DWS_CHECK(row.size() == columns.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], TextWidth(row[i]));
  }
  std::string table = FormatRow(columns, widths, titles, indent);
  for (const std::vector<std::string>& row : rows) table += FormatRow(columns, widths, row, indent);
  return table;
}

}  // namespace dws::dwsctl
