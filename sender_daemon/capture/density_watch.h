// Which groups of tensors change nearly everywhere, learnt from what the encoder chose: captures
// then encode such a group's blocks as dense steps right away, and metrics, status and log say so.
//
// What is sent stays the sender's own affair: a block of dense steps is an ordinary one. Each block
// would be dense without the watch, too, where that is smaller; it saves the attempt at positions,
// about a quarter of the time that encoding such a block takes, and it says which groups they are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/delta/blocks/block.h"
#include "common/model/layout.h"

namespace dws {

// What a version did to a group of tensors, of this rank. Blocks of it that did not change do not
// count.
struct GroupDensity {
  std::string name;  // GroupOf (tensor_group.h)
  uint64_t elements = 0;
  uint64_t full_bytes = 0;
  uint64_t changed = 0;     // of the elements
  uint64_t wire_bytes = 0;  // payloads of its blocks
  uint64_t changed_blocks = 0;
  uint64_t dense_blocks = 0;
};

// A group that is dense from now on, or is so no more.
struct DensityTurn {
  GroupDensity group;
  bool dense = false;
};

// What there is to say of one version.
struct VersionDensity {
  uint64_t groups = 0;
  uint64_t dense_groups = 0;
  uint64_t dense_bytes = 0;  // of this version's payloads, of groups that are dense
  bool dense = false;        // the version as a whole
  bool turned = false;       // it was the other way with the version before
  // At most limits::kDenseGroupsShown each, those of most wire bytes first. Of a dense group that
  // this version did not touch, what the last one did that touched it.
  std::vector<GroupDensity> worst;
  std::vector<DensityTurn> turns;
};

// Lifecycle: one for a snapshot. Threads: as the snapshot's bytes, only inside a capture;
// EncodesDense from several threads.
class DensityWatch {
 public:
  // A group turns dense after kVersions in a row of which at least kEnter of the changed blocks
  // were smaller dense: most attempts at positions were in vain. It turns back after as many of
  // which fewer than kLeave were. Versions that do not touch the group do not count.
  static constexpr double kEnter = 7.0 / 8;
  static constexpr double kLeave = 3.0 / 4;
  static constexpr uint32_t kVersions = 2;
  // Of a dense group one version of kRetry is encoded both ways, to learn from. So is the next one
  // after a version whose changes took kGrowth times the bytes that each took then, or in which
  // fewer than kLeave of the blocks were dense.
  static constexpr uint64_t kRetry = 16;
  static constexpr double kGrowth = 1.25;
  // So much of a block has to change, or it is encoded both ways. With fewer, positions cost
  // less than zeros between steps of either sign do, whatever their size; from here on steps of two
  // bits are smaller dense, those of 14 bits from 0.9 on.
  static constexpr double kBlockShare = 2.0 / 3;
  // A version of this share of all weights' bytes is dense as a whole. Dense steps of one
  // update are 0.17 of an F32's bytes and 0.35 of a BF16's; changes of a tenth of a BF16's elements
  // by one ulp, with their positions, 0.04, of half of them 0.1.
  static constexpr double kVersionShare = 1.0 / 8;

  explicit DensityWatch(const RankLayout& layout);

  // Whether a block of `slice`, `changed` of whose `elements` changed, is encoded as dense steps
  // without looking at positions.
  bool EncodesDense(RankSlice slice, uint64_t changed, uint64_t elements) const;

  // After a version was captured; `blocks` by rank block number.
  VersionDensity Learn(std::span<const EncodedBlock> blocks);

 private:
  struct Group {
    GroupDensity last;  // of the last version that touched it
    bool dense = false;
    bool both_ways = false;         // the next version is encoded both ways
    uint32_t against = 0;           // versions in a row that speak against `dense`
    uint64_t versions = 0;          // since it turned
    double bytes_for_a_change = 0;  // when it was encoded both ways last
  };
  // What `blocks` do, by group.
  std::vector<GroupDensity> Count(std::span<const EncodedBlock> blocks) const;
  // True when it turned.
  static bool Judge(Group& group);

  const RankLayout& layout_;
  std::vector<uint32_t> group_of_;  // by shard
  std::vector<Group> groups_;
  uint64_t full_bytes_ = 0;
  bool version_dense_ = false;
};

}  // namespace dws
