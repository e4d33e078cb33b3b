// What one trainer rank owns: shards (boxes of slices of tensors) ordered by tensor name, and the
// flat numbering of their slices, *rank slices*, that manifests and messages use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/strong_type.h"
#include "common/model/cells.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Numbers the slices of one rank layout from 0.
using RankSlice = StrongType<struct RankSliceTag, uint32_t>;

// The slices of one tensor that a rank owns.
struct Shard {
  TensorSpec tensor;
  CellBox cells;  // by entry of tensor.cuts; none for a tensor without cuts, which is owned whole

  static Shard Whole(TensorSpec tensor);
  bool IsWhole() const { return CellCount(cells) == tensor.SliceCount(); }

  friend bool operator==(const Shard&, const Shard&) = default;
};

// Immutable once made. Threads: safe to read from any.
class RankLayout {
 public:
  // One slice, with precomputed values that all users of a layout need.
  struct SliceEntry {
    uint32_t shard = 0;
    uint32_t slice = 0;  // of the tensor
    DType dtype = DType::kBF16;
    uint64_t elements = 0;
    uint32_t blocks = 0;
    uint64_t first_word = 0;   // the digest's number of its first word
    uint64_t first_block = 0;  // of the rank: counts all blocks of the slices before

    uint64_t size_bytes() const { return elements * ElementBytes(dtype); }
    // The digest's number of the first word of a block. Every block but the last is whole words.
    uint64_t BlockFirstWord(uint32_t block) const {
      return first_word + uint64_t{block} * limits::kBlockElements * ElementBytes(dtype) / 8;
    }
  };

  // `view`: of which view of the trainer's tensors these are (common/quantise/view.h); empty: they
  // are the trainer's own. INVALID_ARGUMENT: a spec is not valid, names are not strictly ascending,
  // slices are out of range, or a limit is exceeded. The message names the tensor, except for
  // limits of the layout.
  static Result<RankLayout> Create(std::vector<Shard> shards, std::string view = {});

  RankLayout() = default;

  const std::string& view() const { return view_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const std::vector<SliceEntry>& slices() const { return slices_; }
  uint32_t slice_count() const { return static_cast<uint32_t>(slices_.size()); }
  const SliceEntry& slice(RankSlice slice) const { return slices_[slice.value()]; }
  const TensorSpec& tensor(RankSlice slice) const {
    return shards_[slices_[slice.value()].shard].tensor;
  }
  uint64_t element_count() const { return element_count_; }
  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t block_count() const { return block_count_; }

  // Returns the rank slice of `slice` of tensor `name`, if this rank owns it.
  std::optional<RankSlice> Find(std::string_view name, uint32_t slice) const;

  // Two layouts have equal signatures exactly when they are equal (up to a 128-bit collision).
  const Digest& signature() const { return signature_; }

  friend bool operator==(const RankLayout& a, const RankLayout& b) {
    return a.shards_ == b.shards_ && a.view_ == b.view_;
  }

 private:
  void Append(uint32_t number, const Shard& shard);

  std::string view_;
  std::vector<Shard> shards_;
  std::vector<SliceEntry> slices_;
  std::vector<uint32_t> shard_first_;  // rank slice of each shard's first slice
  uint64_t element_count_ = 0;
  uint64_t size_bytes_ = 0;
  uint64_t block_count_ = 0;
  Digest signature_;
};

// A hash over the digests of all slices of a rank, in order: two ranks are in the same state when
// layout signature and state token agree.
Digest StateToken(const std::vector<Digest>& slice_digests);

}  // namespace dws
