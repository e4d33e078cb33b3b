// Plain text for people: figures with units, and tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dws::dwsctl {

// "512 B", "12.3 KiB", "4.0 GiB".
std::string FormatBytes(uint64_t bytes);
// "830 us", "12.4 ms", "3.2 s", "4 min 12 s", "3 h 20 min", "5 d 1 h".
std::string FormatSeconds(double seconds);
// `part` of `whole`: "0.83 %", "-" of nothing.
std::string FormatShare(uint64_t part, uint64_t whole);

// How many times `part` fits in `whole`: "8.1x", "120x", "-" of nothing.
std::string FormatRatio(uint64_t whole, uint64_t part);
// "-" for 0, which is no version.
std::string FormatVersion(uint64_t version);
// "2026-03-01 12:00:05 UTC", "-" for none.
std::string FormatUnixTime(double unix_seconds);

struct Column {
  std::string_view title;
  bool left = false;  // figures are aligned to the right
};

// The rows under a line of titles, columns as wide as they need, two spaces between them, each line
// after `indent` spaces. Every row has one cell a column, of clean text (printable.h).
std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t indent);

}  // namespace dws::dwsctl
