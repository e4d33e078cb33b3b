// Everything that all trainer ranks own together: every canonical tensor once, and for each of its
// slices the trainer rank and the rank slice that own it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/model/refinement.h"
#include "common/model/weight_version.h"
#include "common/sync_state/subscription_state.h"

namespace dws {

// A slice of a canonical tensor, as its trainer rank numbers it.
struct OwnedSlice {
  TrainerRank rank;
  RankSlice slice;

  friend auto operator<=>(const OwnedSlice&, const OwnedSlice&) = default;
};

// Immutable once made. Threads: safe to read from any.
class LayoutSet {
 public:
  struct Tensor {
    TensorSpec spec;
    std::vector<OwnedSlice> owners;  // by slice of the tensor
  };

  // `ranks` by trainer rank, at least one. UNAVAILABLE: two ranks cut a tensor differently, which
  // ends when their senders have refined it. FAILED_PRECONDITION: two ranks declare a tensor
  // differently or own the same slice, or no rank owns a slice. The message names the tensor.
  static Result<std::shared_ptr<const LayoutSet>> Create(
      std::vector<std::shared_ptr<const RankLayout>> ranks);

  uint32_t world_size() const { return static_cast<uint32_t>(ranks_.size()); }
  const RankLayout& rank(TrainerRank rank) const { return *ranks_[rank.value()]; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* Find(std::string_view name) const;
  size_t slice_count() const;  // of all tensors
  // "slice 2 of tensor 'embed' (...)" for a slice as EngineShare numbers them.
  std::string SliceName(size_t slice) const;

  // Returns whether `target` has exactly these layouts.
  bool Fits(const SyncTarget& target) const;
  // With these boundaries as well. Errors: as dws::Refined.
  Result<std::shared_ptr<const LayoutSet>> Refined(const CutWishes& cuts) const;
  // Returns whether both have the same number of ranks, with equal layouts.
  bool SameAs(const LayoutSet& other) const;

 private:
  LayoutSet() = default;

  std::vector<std::shared_ptr<const RankLayout>> ranks_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

using LayoutSetPtr = std::shared_ptr<const LayoutSet>;

}  // namespace dws
