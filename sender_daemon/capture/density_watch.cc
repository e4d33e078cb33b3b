#include "sender_daemon/capture/density_watch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/model/full_cost.h"
#include "common/model/limits.h"
#include "common/model/tensor_group.h"

namespace dws {
namespace {

const GroupDensity& DensityOf(const GroupDensity& group) { return group; }
const GroupDensity& DensityOf(const DensityTurn& turn) { return turn.group; }

// Keeps the entries that are shown.
template <typename Entry>
void KeepWorst(std::vector<Entry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return DensityOf(a).wire_bytes > DensityOf(b).wire_bytes;
  });
  if (entries.size() > limits::kDenseGroupsShown) entries.resize(limits::kDenseGroupsShown);
}

}  // namespace

DensityWatch::DensityWatch(const RankLayout& layout) : layout_(layout) {
  std::map<std::string, uint32_t> numbers;
  for (const Shard& shard : layout.shards()) {
    const auto [entry, is_new] =
        numbers.emplace(GroupOf(shard.tensor.name), static_cast<uint32_t>(groups_.size()));
    if (is_new) groups_.emplace_back().last.name = entry->first;
    group_of_.push_back(entry->second);
  }
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    GroupDensity& group = groups_[group_of_[slice.shard]].last;
    group.elements += slice.elements;
    group.full_bytes += slice.size_bytes();
    full_bytes_ += slice.size_bytes();
  }
  DWS_CHECK(full_bytes_ == layout.size_bytes());
}

bool DensityWatch::EncodesDense(RankSlice slice, uint64_t changed, uint64_t elements) const {
  const Group& group = groups_[group_of_[layout_.slice(slice).shard]];
  return group.dense && !group.both_ways && Share(changed, elements) >= kBlockShare;
}

std::vector<GroupDensity> DensityWatch::Count(std::span<const EncodedBlock> blocks) const {
  std::vector<GroupDensity> counts(groups_.size());
  for (const RankLayout::SliceEntry& slice : layout_.slices()) {
    GroupDensity& count = counts[group_of_[slice.shard]];
    for (const EncodedBlock& block : blocks.subspan(slice.first_block, slice.blocks)) {
      if (block.mode == BlockMode::kEmpty) continue;
      count.changed += block.nnz;
      count.wire_bytes += block.payload.size();
      ++count.changed_blocks;
      count.dense_blocks += block.mode == BlockMode::kDenseUlp ? 1 : 0;
    }
  }
  return counts;
}

bool DensityWatch::Judge(Group& group) {
  DWS_CHECK(group.against < kVersions);  // it turns, and counts from 0 again, at kVersions
  const double dense_share = Share(group.last.dense_blocks, group.last.changed_blocks);
  const double bytes_for_a_change = Share(group.last.wire_bytes, group.last.changed);
  if (!group.dense || group.both_ways) group.bytes_for_a_change = bytes_for_a_change;
  // Blocks of a dense group get another encoding only after both were tried.
  const bool against = group.dense ? dense_share < kLeave : dense_share >= kEnter;
  group.against = against ? group.against + 1 : 0;
  ++group.versions;
  const bool turns = group.against == kVersions;
  if (turns) {
    group.dense = !group.dense;
    group.against = 0;
    group.versions = 0;
  }
  group.both_ways = group.against > 0 || (group.versions + 1) % kRetry == 0 ||
                    bytes_for_a_change > kGrowth * group.bytes_for_a_change;
  return turns;
}

VersionDensity DensityWatch::Learn(std::span<const EncodedBlock> blocks) {
  DWS_CHECK(blocks.size() == layout_.block_count());
  std::vector<GroupDensity> counts = Count(blocks);
  VersionDensity found{.groups = groups_.size()};
  uint64_t wire_bytes = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    GroupDensity& count = counts[i];
    wire_bytes += count.wire_bytes;
    if (count.changed_blocks > 0) {
      count.name = std::move(group.last.name);
      count.elements = group.last.elements;
      count.full_bytes = group.last.full_bytes;
      group.last = std::move(count);
      if (Judge(group)) found.turns.push_back({.group = group.last, .dense = group.dense});
      if (group.dense) found.dense_bytes += group.last.wire_bytes;
    }
    if (!group.dense) continue;
    ++found.dense_groups;
    found.worst.push_back(group.last);
  }
  KeepWorst(found.worst);
  KeepWorst(found.turns);
  found.dense = Share(wire_bytes, full_bytes_) >= kVersionShare;
  found.turned = found.dense != std::exchange(version_dense_, found.dense);
  return found;
}

}  // namespace dws
