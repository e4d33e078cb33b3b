// Rows of `watch` as a table that fits any terminal, and as lines. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/dwsctl/text/watch_row.h"

namespace dws::dwsctl {

// A line of titles, a line a row, and below it what troubles the daemon. No line is wider than
// `columns` (at least 20): columns that do not fit are left out, rate first, then bytes, density
// and pause. With `colour`, escapes that change colours and nothing else.
std::vector<std::string> FormatWatchTable(const std::vector<WatchRow>& rows, size_t columns,
                                          bool colour);

// "2026-03-01 12:00:05 UTC rollout-0: version 127, lag 1, ..." with a line end.
std::string FormatWatchLine(const WatchRow& row);

// Redraws lines in place. Not thread-safe.
class WatchScreen {
 public:
  // The bytes that put `lines` where the lines before were. At most `rows` - 1 of them are shown,
  // the last saying how many are missing. `anew`: the terminal has another size, so where lines
  // stand is not known: clears it.
  std::string Draw(std::vector<std::string> lines, size_t rows, bool anew);
  // Leaves the cursor on an empty line below what was drawn.
  std::string End() const { return "\r\x1b[K"; }

 private:
  size_t drawn_ = 0;  // lines
};

}  // namespace dws::dwsctl
