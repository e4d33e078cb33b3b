#include "tools/bench/measure/workload.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace dws::bench {
namespace {

constexpr uint64_t kAlignmentBytes = 64;

bool Differ(const TensorPair& tensor, uint64_t element) {
  const size_t width = ElementBytes(tensor.spec.dtype);
  return std::memcmp(tensor.before.data() + element * width, tensor.after.data() + element * width,
                     width) != 0;
}

// The 16-bit word at `offset`; the byte behind an odd end is zero.
uint16_t WordAt(ByteSpan bytes, uint64_t offset) {
  uint16_t word = 0;
  std::memcpy(&word, bytes.data() + offset, std::min<uint64_t>(2, bytes.size() - offset));
  return word;
}

void AppendChanges(const TensorPair& tensor, uint64_t first_word, WordChanges& changes) {
  for (uint64_t offset = 0; offset < tensor.before.size(); offset += 2) {
    const uint16_t before = WordAt(tensor.before, offset);
    const uint16_t after = WordAt(tensor.after, offset);
    if (before == after) continue;
    changes.index.push_back(static_cast<uint32_t>(first_word + offset / 2));
    changes.before.push_back(before);
    changes.after.push_back(after);
  }
}

}  // namespace

Result<Placement> PlaceTensors(const std::vector<TensorSpec>& specs) {
  Placement placement;
  std::vector<Shard> shards;
  for (const TensorSpec& spec : specs) {
    shards.push_back(Shard::Whole(spec));
    placement.places.push_back({.region = 0, .offset_bytes = placement.size_bytes});
    placement.size_bytes += CeilDiv(spec.SizeBytes(), kAlignmentBytes) * kAlignmentBytes;
  }
  placement.size_bytes = std::max(placement.size_bytes, kAlignmentBytes);
  DWS_ASSIGN_OR_RETURN(placement.layout, RankLayout::Create(std::move(shards)));
  return placement;
}

Result<Workload> Workload::Tile(std::vector<TensorPair> tensors, uint64_t size_bytes) {
  Workload workload;
  uint64_t tile_bytes = 0;
  uint64_t tile_changed = 0;
  for (const TensorPair& tensor : tensors) {
    tile_bytes += tensor.before.size();
    for (uint64_t e = 0; e < tensor.spec.ElementCount(); ++e) tile_changed += Differ(tensor, e);
  }
  const uint64_t tiles = std::max<uint64_t>(size_bytes / std::max<uint64_t>(tile_bytes, 1), 1);
  std::vector<TensorSpec> specs;
  for (uint64_t t = 0; t < tiles; ++t) {
    for (const TensorPair& tensor : tensors) {
      specs.push_back(tensor.spec);
      specs.back().name = fmt::format("{:05}.{}", t, tensor.spec.name);
    }
  }
  DWS_ASSIGN_OR_RETURN(workload.placement_, PlaceTensors(specs));
  if (workload.placement_.size_bytes / 2 > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgumentError("{} bytes of weights, expected at most 8 GiB",
                                workload.placement_.size_bytes);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    AppendChanges(tensors[i % tensors.size()], workload.placement_.places[i].offset_bytes / 2,
                  workload.changes_);
  }
  workload.changed_elements_ = tile_changed * tiles;
  workload.tensors_ = std::move(tensors);
  return workload;
}

void Workload::FillBefore(MutableByteSpan region) const {
  DWS_CHECK(region.size() == placement_.size_bytes);
  for (size_t i = 0; i < placement_.places.size(); ++i) {
    const std::vector<std::byte>& from = tensors_[i % tensors_.size()].before;
    if (from.empty()) continue;
    std::memcpy(region.data() + placement_.places[i].offset_bytes, from.data(), from.size());
  }
}

void Workload::Write(MutableByteSpan region, std::span<const uint16_t> words) const {
  DWS_CHECK(region.size() == placement_.size_bytes && words.size() == changes_.index.size());
  auto* const at = reinterpret_cast<uint16_t*>(region.data());
  for (size_t i = 0; i < words.size(); ++i) at[changes_.index[i]] = words[i];
}

}  // namespace dws::bench
