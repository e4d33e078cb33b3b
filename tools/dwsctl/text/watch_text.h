// Formats the rows of `watch` as a table that fits any terminal, or as lines. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/dwsctl/text/watch_row.h"

namespace dws::dwsctl {

// A line of titles, then one line per row with the daemon's problem, if any, below it. No line is
// wider than `columns` (at least 20): columns that do not fit are left out, rate first, then bytes,
// density and pause. With `colour` it adds escapes that only change colours.
std::vector<std::string> FormatWatchTable(const std::vector<WatchRow>& rows, size_t columns,
                                          bool colour);

// "2026-03-01 12:00:05 UTC rollout-0: version 127, lag 1, ..." with a line end.
std::string FormatWatchLine(const WatchRow& row);

// Redraws lines in place. Not thread-safe.
class WatchScreen {
 public:
  // The bytes that replace the lines drawn before by `lines`. At most `rows` - 1 lines are shown;
  // if there are more, the last line says how many are missing. `redraw`: the terminal has changed
  // its size, so the position of the old lines is not known, and the screen is cleared.
  std::string Draw(std::vector<std::string> lines, size_t rows, bool redraw);
  // Leaves the cursor on an empty line below the drawn lines.
  std::string End() const { return "\r\x1b[K"; }

 private:
  size_t drawn_ = 0;  // number of lines
};

}  // namespace dws::dwsctl
