// The places that hold each slice of all trainer ranks, in one kind of memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// Immutable once made. Threads: safe to read from any.
template <typename Place>
class SlicePlaces {
 public:
  // `held` may be in any order; the places of one slice keep their order.
  SlicePlaces(const LayoutSet& layouts, std::vector<std::pair<OwnedSlice, Place>> held) {
    std::stable_sort(held.begin(), held.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t next = 0;
    for (uint32_t r = 0; r < layouts.world_size(); ++r) {
      std::vector<uint32_t>& first = first_.emplace_back();
      for (uint32_t s = 0; s < layouts.rank(TrainerRank(r)).slice_count(); ++s) {
        first.push_back(static_cast<uint32_t>(next));
        const OwnedSlice slice{.rank = TrainerRank(r), .slice = RankSlice(s)};
        for (; next < held.size() && held[next].first == slice; ++next) {
          places_.push_back(std::move(held[next].second));
        }
      }
      first.push_back(static_cast<uint32_t>(next));
    }
    DWS_CHECK(next == held.size());  // `held` are slices of `layouts`
  }

  std::span<const Place> At(TrainerRank rank, RankSlice slice) const {
    return std::span(places_).subspan(First(rank, slice), Count(rank, slice));
  }
  // The index of the slice's first place in all(), and how many places it has.
  size_t First(TrainerRank rank, RankSlice slice) const {
    return first_[rank.value()][slice.value()];
  }
  size_t Count(TrainerRank rank, RankSlice slice) const {
    return first_[rank.value()][slice.value() + 1] - First(rank, slice);
  }
  const std::vector<Place>& all() const { return places_; }

 private:
  std::vector<std::vector<uint32_t>> first_;  // by trainer rank and slice, and the end
  std::vector<Place> places_;
};

}  // namespace dws
