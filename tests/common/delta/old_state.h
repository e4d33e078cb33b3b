// A state in memory, as the weights that deltas are composed over.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/delta/squash.h"
#include "common/model/limits.h"
#include "tests/common/delta/objects.h"

namespace dws::samples {

// Refers to a layout and a state that outlive it.
class OldState : public OldWeights {
 public:
  OldState(const RankLayout& layout, const State& state) : layout_(layout), state_(state) {
    DWS_CHECK(state.size() == layout.slice_count());
    for (size_t s = 0; s < state.size(); ++s) {
      digests_.push_back(DigestBytes(state[s], layout.slices()[s].first_word));
    }
  }

  bool Has(RankSlice slice, const Digest& digest) const override {
    return digests_[slice.value()] == digest;
  }
  Status Read(RankSlice slice, uint32_t first_block, MutableByteSpan out) const override {
    const size_t first =
        size_t{first_block} * limits::kBlockElements * ElementBytes(layout_.slice(slice).dtype);
    DWS_CHECK(first + out.size() <= state_[slice.value()].size());
    std::ranges::copy(ByteSpan(state_[slice.value()]).subspan(first, out.size()), out.begin());
    return OkStatus();
  }

 private:
  const RankLayout& layout_;
  const State& state_;
  std::vector<Digest> digests_;  // by rank slice
};

}  // namespace dws::samples
