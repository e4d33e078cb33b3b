#include "tools/dwsctl/text/watch_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/progress_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kNameColumnsMin = 8;
constexpr size_t kNameColumnsKept = 12;  // a column is left out before the name gets narrower
constexpr size_t kNameColumnsMax = 32;
constexpr size_t kStageColumnsMin = 10;
constexpr size_t kStageColumnsMax = 36;
constexpr size_t kStageColumnsWanted = 20;

// The columns of fixed width; name and stage share the rest.
struct Figure {
  const char* title;
  size_t columns;
  std::string WatchRow::*text;
  bool before_stage;
  int leave_out;  // the column with the highest value is left out first; 0: never
};
constexpr std::array<Figure, 6> kFigures = {{{"version", 7, &WatchRow::version, true, 0},
                                             {"lag", 4, &WatchRow::lag, true, 0},
                                             {"density", 7, &WatchRow::density, true, 2},
                                             {"wire", 5, &WatchRow::wire, true, 3},
                                             {"pause", 7, &WatchRow::pause, false, 1},
                                             {"rate", 7, &WatchRow::rate, false, 4}}};

struct Plan {
  std::array<bool, kFigures.size()> shown{};
  size_t name = kNameColumnsMin;
  size_t stage = kStageColumnsMin;
};

size_t FixedColumns(const Plan& plan) {
  size_t columns = 1;  // the space between name and stage
  for (size_t i = 0; i < kFigures.size(); ++i) {
    if (plan.shown[i]) columns += kFigures[i].columns + 1;
  }
  return columns;
}

Plan MakePlan(const std::vector<WatchRow>& rows, size_t columns) {
  size_t name_wanted = kNameColumnsMin;
  for (const WatchRow& row : rows) name_wanted = std::max(name_wanted, TextWidth(row.name));
  Plan plan{.name = std::min(name_wanted, kNameColumnsKept)};
  plan.shown.fill(true);
  for (int worst = 4; worst > 0 && FixedColumns(plan) + plan.name + plan.stage > columns; --worst) {
    for (size_t i = 0; i < kFigures.size(); ++i) {
      if (kFigures[i].leave_out == worst) plan.shown[i] = false;
    }
  }
  const size_t fixed = FixedColumns(plan);
  size_t left =
      columns > fixed + plan.name + plan.stage ? columns - fixed - plan.name - plan.stage : 0;
  const auto grow = [&left](size_t& width, size_t wanted) {
    const size_t more = wanted > width ? std::min(wanted - width, left) : 0;
    width += more;
    left -= more;
  };
  grow(plan.stage, kStageColumnsWanted);
  grow(plan.name, std::min(name_wanted, kNameColumnsMax));
  grow(plan.stage, kStageColumnsMax);
  return plan;
}

// "fetching [####---] 45%", or as much of it as fits.
std::string StageCell(const WatchRow& row, size_t columns) {
  std::string cell = Printable(row.stage, columns);
  if (!row.done.has_value()) return cell;
  const double share = std::clamp(std::isfinite(*row.done) ? *row.done : 0.0, 0.0, 1.0);
  const std::string percent = fmt::format(" {:.0f}%", std::floor(100 * share));
  const size_t used = TextWidth(cell);
  if (used + percent.size() > columns) return cell;
  const size_t bar = columns - used - percent.size();
  if (bar >= 6) cell += " " + FormatBar(share, bar - 1);
  return cell + percent;
}

std::string CutLine(const std::string& line, size_t columns) {
  std::string cut = Printable(line, columns);
  cut.resize(cut.find_last_not_of(' ') == std::string::npos ? 0 : cut.find_last_not_of(' ') + 1);
  return cut;
}

template <typename Cell>
std::string FormatLine(const Plan& plan, const std::string& name, const std::string& stage,
                       const Cell& cell) {
  std::string before;
  std::string after;
  for (size_t i = 0; i < kFigures.size(); ++i) {
    if (!plan.shown[i]) continue;
    (kFigures[i].before_stage ? before : after) +=
        " " + Padded(Printable(cell(kFigures[i]), kFigures[i].columns), kFigures[i].columns, false);
  }
  return Padded(Printable(name, plan.name), plan.name, true) + before + " " +
         Padded(stage, plan.stage, true) + after;
}

std::string Painted(const std::string& line, WatchRow::Mood mood, bool colour) {
  if (!colour) return line;
  switch (mood) {
    case WatchRow::Mood::kFine:
      return line;
    case WatchRow::Mood::kWaiting:
      return "\x1b[33m" + line + "\x1b[0m";
    case WatchRow::Mood::kTrouble:
      return "\x1b[31m" + line + "\x1b[0m";
  }
  return line;
}

}  // namespace

std::vector<std::string> FormatWatchTable(const std::vector<WatchRow>& rows, size_t columns,
                                          bool colour) {
  const Plan plan = MakePlan(rows, columns);
  const std::string titles = CutLine(
      FormatLine(plan, "daemon", "stage", [](const Figure& figure) { return figure.title; }),
      columns);
  std::vector<std::string> lines = {colour ? "\x1b[1m" + titles + "\x1b[0m" : titles};
  for (const WatchRow& row : rows) {
    const std::string line = FormatLine(plan, row.name, StageCell(row, plan.stage),
                                        [&row](const Figure& figure) { return row.*figure.text; });
    lines.push_back(Painted(CutLine(line, columns), row.mood, colour));
    if (!row.note.empty()) {
      lines.push_back(Painted(CutLine("  " + row.note, columns), row.mood, colour));
    }
  }
  return lines;
}

std::string FormatWatchLine(const WatchRow& row) {
  std::string line = row.unix_seconds > 0 ? FormatUnixTime(row.unix_seconds) + " " : "";
  line += fmt::format("{}: version {}, lag {}, density {}, wire {}, {}", row.name, row.version,
                      row.lag, row.density, row.wire, row.stage);
  if (row.done.has_value()) line += fmt::format(" {:.0f}%", std::floor(100 * *row.done));
  line += fmt::format(", pause {}, rate {}", row.pause, row.rate);
  if (!row.note.empty()) line += "; " + row.note;
  return line + "\n";
}

std::string WatchScreen::Draw(std::vector<std::string> lines, size_t rows, bool redraw) {
  const size_t lines_max = std::max<size_t>(rows, 2) - 1;
  if (lines.size() > lines_max) {
    const size_t missing = lines.size() - lines_max + 1;
    lines.resize(lines_max);
    lines.back() = fmt::format("and {} more lines", missing);
  }
  std::string frame = "\r";
  if (redraw) {
    frame += "\x1b[H\x1b[2J";
  } else if (drawn_ > 0) {
    frame += fmt::format("\x1b[{}A", drawn_);
  }
  for (const std::string& line : lines) frame += line + "\x1b[K\n";
  frame += "\x1b[J";
  drawn_ = lines.size();
  return frame;
}

}  // namespace dws::dwsctl
