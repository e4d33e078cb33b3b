// On slow links the share of the bytes decides, not that of the elements: where every element
// changes by little, dense steps are a third of the weights, and worth their time.
#include "sender_daemon/capture/full/full_watch.h"

#include <algorithm>

#include "common/model/full_cost.h"

namespace dws {

std::string_view ToString(FullCause cause) {
  switch (cause) {
    case FullCause::kNone:
      return "";
    case FullCause::kFirst:
      return "first";
    case FullCause::kAsked:
      return "asked";
    case FullCause::kDense:
      return "dense";
  }
  return "";
}

bool FullWatch::InSample(uint64_t number) const {
  if (unsampled_ + 1 < kSampleVersionEvery) return false;
  const uint64_t every = std::clamp<uint64_t>(block_count_ / kSampleBlocksMin, 1, kSampleEvery);
  return number % every == learnt_ % every;
}

void FullWatch::Rule::Learn(double share, double enter, bool whole) {
  if (pays) {
    pays = whole && share >= kLeave;
    dense = 0;
    return;
  }
  dense = whole && share >= enter ? dense + 1 : 0;
  pays = dense >= kVersions;
}

void FullWatch::Learn(const Version& version) {
  if (weights_bytes_ < kWeightsBytesMin) return;
  const auto weights_bytes = static_cast<double>(weights_bytes_);
  const auto changed = static_cast<double>(version.changed);
  const double share = version.delta_share.value_or(changed_bytes_ * changed / weights_bytes);
  if (version.delta_share.has_value()) {
    unsampled_ = 0;
    ++learnt_;
    changed_bytes_ = share * weights_bytes / std::max(changed, 1.0);
  } else {
    ++unsampled_;
  }
  by_bytes_.Learn(share, kFullShare, version.whole);
  by_time_.Learn(DeltaTime(share, version.changed, weights_bytes_), 1, version.whole);
}

}  // namespace dws
