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

bool FullWatch::InSample(uint64_t number, uint64_t version) const {
  if (unsampled_ + 1 < kSampledVersions) return false;
  const uint64_t every = std::clamp<uint64_t>(block_count_ / kSampleBlocksMin, 1, kSampleEvery);
  return number % every == version % every;
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
  double share = 0;
  if (version.delta_of_bytes == 0) {
    ++unsampled_;
    share =
        changed_bytes_ * static_cast<double>(version.changed) / static_cast<double>(weights_bytes_);
  } else {
    unsampled_ = 0;
    share = static_cast<double>(version.delta_bytes) / static_cast<double>(version.delta_of_bytes);
    changed_bytes_ = share * static_cast<double>(weights_bytes_) /
                     static_cast<double>(std::max<uint64_t>(version.changed, 1));
  }
  by_bytes_.Learn(share, kFullShare, version.whole);
  by_time_.Learn(DeltaTime(share, version.changed, weights_bytes_), 1, version.whole);
}

}  // namespace dws
