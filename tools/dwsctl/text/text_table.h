// Formats numbers with units, and tables, as plain text.
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
// `part` of `whole`: "0.83 %"; "-" if `whole` is 0.
std::string FormatShare(uint64_t part, uint64_t whole);

// How many times `part` fits in `whole`: "8.1x", "120x"; "-" if one of them is 0.
std::string FormatRatio(uint64_t whole, uint64_t part);
// "-" for 0, which means no version.
std::string FormatVersion(uint64_t version);
// "2026-03-01 12:00:05 UTC", "-" for none.
std::string FormatUnixTime(double unix_seconds);

struct Column {
  std::string_view title;
  bool left = false;  // numbers are aligned to the right
};

// A line of titles, then the rows. Columns are as wide as their contents, with two spaces between
// them; each line is indented by `indent` spaces. Every row has one cell per column, of clean text
// (printable.h).
std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t indent);

}  // namespace dws::dwsctl
