// The weights a benchmark works on, in two versions: tensors placed in one region of memory one
// after the other, and the 16-bit words that differ.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "sender_daemon/trainer/handover.h"

namespace dws::bench {

// A tensor in two versions.
struct TensorPair {
  TensorSpec spec;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

// The places of tensors in a region: in the order of their names, at multiples of 64 bytes.
struct Placement {
  RankLayout layout;
  std::vector<ShardPlace> places;
  uint64_t size_bytes = 0;  // a multiple of 64

  MutableByteSpan Tensor(MutableByteSpan region, size_t shard) const {
    return region.subspan(places[shard].offset_bytes, layout.shards()[shard].tensor.SizeBytes());
  }
};

// INVALID_ARGUMENT: not a valid layout.
Result<Placement> PlaceTensors(const std::vector<TensorSpec>& specs);

// The words of a region that change, ascending: region[index] is before or after.
struct WordChanges {
  std::vector<uint32_t> index;
  std::vector<uint16_t> before;
  std::vector<uint16_t> after;
};

// Immutable once made.
class Workload {
 public:
  // Copies of `tensors` side by side, as many as fit `size_bytes`, at least one. INVALID_ARGUMENT:
  // not a valid layout, or more words than a WordChanges can number.
  static Result<Workload> Tile(std::vector<TensorPair> tensors, uint64_t size_bytes);

  const Placement& placement() const { return placement_; }
  const WordChanges& changes() const { return changes_; }
  uint64_t changed_elements() const { return changed_elements_; }
  uint64_t model_bytes() const { return placement_.layout.size_bytes(); }
  // The share of elements that change.
  double density() const {
    return static_cast<double>(changed_elements_) /
           static_cast<double>(placement_.layout.element_count());
  }

  // Writes the first version to a region of placement().size_bytes.
  void FillBefore(MutableByteSpan region) const;
  // Brings a region from one version to the other.
  void Write(MutableByteSpan region, std::span<const uint16_t> words) const;

 private:
  Workload() = default;

  std::vector<TensorPair> tensors_;
  Placement placement_;
  WordChanges changes_;
  uint64_t changed_elements_ = 0;
};

}  // namespace dws::bench
