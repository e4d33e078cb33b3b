// A sweep over the begins and ends of what was logged.
#include "tools/bench/gpu/time_split.h"

#include <algorithm>
#include <array>
#include <vector>

namespace dws::bench {
namespace {

using Kind = cuda::ModelledOp::Kind;
enum Lane : uint8_t { kCompute, kToDevice, kToHost, kWaits, kMemory, kLaneCount };

Lane LaneOf(Kind kind) {
  switch (kind) {
    case Kind::kKernel:
    case Kind::kOnDevice:
      return kCompute;
    case Kind::kToDevice:
      return kToDevice;
    case Kind::kToHost:
      return kToHost;
    case Kind::kWait:
      return kWaits;
    case Kind::kTakeMemory:
      return kMemory;
  }
  return kCompute;
}

// A lane is busier or less busy from here on.
struct Change {
  double at = 0;
  Lane lane = kCompute;
  int by = 0;
};

// Adds a time during which `active` says what goes on in each lane.
void Count(const std::array<int, kLaneCount>& active, double seconds, TimeSplit& split) {
  const int engines = (active[kCompute] > 0) + (active[kToDevice] > 0) + (active[kToHost] > 0);
  const bool waits = active[kWaits] > 0;
  const bool memory = active[kMemory] > 0;
  if (active[kCompute] > 0) split.compute += seconds;
  if (active[kToDevice] > 0) split.to_device += seconds;
  if (active[kToHost] > 0) split.to_host += seconds;
  if (engines > 0) split.busy += seconds;
  if (waits) {
    split.waits += seconds;
    if (engines > 1) split.waits_overlapped += seconds;
    if (engines == 0) split.waits_idle += seconds;
  } else if (memory) {
    split.memory += seconds;
  } else {
    split.host += seconds;
    if (engines > 0) split.hidden += seconds;
  }
}

}  // namespace

TimeSplit& TimeSplit::operator+=(const TimeSplit& other) {
  whole += other.whole;
  compute += other.compute;
  to_device += other.to_device;
  to_host += other.to_host;
  waits += other.waits;
  memory += other.memory;
  host += other.host;
  waits_overlapped += other.waits_overlapped;
  waits_idle += other.waits_idle;
  busy += other.busy;
  hidden += other.hidden;
  return *this;
}

TimeSplit SplitTime(std::span<const cuda::ModelledOp> log, double begin, double end) {
  std::vector<Change> changes;
  for (const cuda::ModelledOp& op : log) {
    const double from = std::max(op.begin, begin);
    const double to = std::min(op.end, end);
    if (from >= to) continue;
    changes.push_back({.at = from, .lane = LaneOf(op.kind), .by = 1});
    changes.push_back({.at = to, .lane = LaneOf(op.kind), .by = -1});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.at < b.at; });
  TimeSplit split{.whole = end - begin};
  std::array<int, kLaneCount> active = {};
  double at = begin;
  for (const Change& change : changes) {
    Count(active, change.at - at, split);
    at = change.at;
    active[change.lane] += change.by;
  }
  Count(active, end - at, split);
  return split;
}

}  // namespace dws::bench
