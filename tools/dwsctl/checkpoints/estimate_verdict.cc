// The limits are the daemons' own.
#include "tools/dwsctl/checkpoints/estimate_verdict.h"

#include "common/model/full_cost.h"
#include "common/model/limits.h"

namespace dws::dwsctl {
namespace {

// Slices lie there at multiples of 64 bytes, so a tensor wastes less than that.
constexpr uint64_t kWastedBytes = 64;

}  // namespace

std::string_view ToString(SentAs sent) {
  switch (sent) {
    case SentAs::kNothing:
      return "nothing";
    case SentAs::kFull:
      return "full";
    case SentAs::kFast:
      return "DWS fast";
    case SentAs::kWan:
      return "DWS wan";
  }
  return "";
}

Verdict VerdictAt(const checkpoint::Estimate& estimate, const Bandwidth& bandwidth) {
  if (estimate.changed == 0) return {};
  Verdict verdict{.sent = SentAs::kFast, .bytes = estimate.fast_bytes};
  const double share =
      static_cast<double>(estimate.fast_bytes) / static_cast<double>(estimate.full_bytes);
  const bool fast_link = bandwidth.bytes_per_second > static_cast<double>(kDirectBytesPerSecond);
  if (share >= kFullShare ||
      (fast_link && DeltaTime(share, estimate.changed, estimate.full_bytes) >= 1)) {
    verdict = {.sent = SentAs::kFull, .bytes = estimate.full_bytes};
  } else if (bandwidth.bytes_per_second < static_cast<double>(limits::kWanBytesPerSecond)) {
    verdict = {.sent = SentAs::kWan, .bytes = estimate.wan_bytes};
  }
  verdict.seconds = static_cast<double>(verdict.bytes) / bandwidth.bytes_per_second;
  return verdict;
}

DeviceWay DeviceWayOf(const checkpoint::Estimate& estimate) {
  const uint64_t there = estimate.full_bytes + kWastedBytes * estimate.tensors;
  return {.bytes = estimate.full_bytes, .copy_bytes = there, .staging_bytes = there};
}

}  // namespace dws::dwsctl
