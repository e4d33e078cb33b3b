// The share of the bytes decides, not that of the elements: where every element changes by little,
// dense steps are a third of the weights, and may be worth their time.
#include "sender_daemon/capture/full/full_watch.h"

#include <algorithm>

#include "common/model/delta_profile.h"

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
  const uint64_t every = std::clamp<uint64_t>(block_count_ / kSampleBlocksMin, 1, kSampleEvery);
  return number % every == version % every;
}

void FullWatch::Learn(uint64_t delta_bytes, uint64_t weights_bytes, bool whole) {
  const double share =
      static_cast<double>(delta_bytes) / static_cast<double>(std::max<uint64_t>(weights_bytes, 1));
  if (pays_) {
    pays_ = whole && share >= kLeave;
    dense_ = 0;
    return;
  }
  dense_ = eligible_ && whole && share >= kFullShare ? dense_ + 1 : 0;
  pays_ = dense_ >= kVersions;
}

}  // namespace dws
