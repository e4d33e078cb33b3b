#include "common/base/log/log_repeats.h"

#include <algorithm>

namespace dws {

// A window writes its first lines_max lines and counts the rest. Each level of an event has its own
// window: a flood of warnings does not hide an error of the same name.
bool LogRepeats::Admit(LogLevel level, std::string_view event, LogFields fields, TimePoint now) {
  if (level == LogLevel::kDebug) return true;
  const auto key = std::make_pair(std::string(event), level);
  auto at = windows_.find(key);
  if (at == windows_.end()) {
    if (windows_.size() >= kEventsMax) return true;
    at = windows_.emplace(key, Window{.end = now + options_.window}).first;
    first_end_ = std::min(first_end_, at->second.end);
  }
  Window& window = at->second;
  if (window.lines < options_.lines_max) {
    ++window.lines;
    return true;
  }
  window.count.level = level;
  window.count.event = event;
  window.count.last_fields = fields;
  ++window.count.suppressed;
  return false;
}

std::vector<RepeatCount> LogRepeats::TakeCounts(TimePoint now) {
  std::vector<RepeatCount> counts;
  if (now < first_end_) return counts;
  first_end_ = TimePoint::max();
  for (auto at = windows_.begin(); at != windows_.end();) {
    if (at->second.end > now) {
      first_end_ = std::min(first_end_, at->second.end);
      ++at;
      continue;
    }
    if (at->second.count.suppressed > 0) counts.push_back(std::move(at->second.count));
    at = windows_.erase(at);
  }
  return counts;
}

}  // namespace dws
