// Learns from the encoder's choices which groups of tensors change nearly everywhere. Captures then
// encode such a group's blocks as dense steps at once, and metrics, status and log report them.
//
// Receivers do not depend on this: a block of dense steps is an ordinary block, and without the
// watch the encoder also chooses dense steps where they are smaller. The watch saves the attempt to
// encode positions, about a quarter of the time that encoding such a block takes, and it names the
// groups.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/delta/blocks/block.h"
#include "common/model/layout.h"

namespace dws {

// What a version changed in a group of tensors of this rank. Unchanged blocks are not counted.
struct GroupDensity {
  std::string name;  // GroupOf (tensor_group.h)
  uint64_t elements = 0;
  uint64_t full_bytes = 0;
  uint64_t changed = 0;     // elements
  uint64_t wire_bytes = 0;  // payloads of its blocks
  uint64_t changed_blocks = 0;
  uint64_t dense_blocks = 0;
};

// A group that becomes dense, or is no longer dense.
struct DensityTurn {
  GroupDensity group;
  bool dense = false;
};

// The density of one version.
struct VersionDensity {
  uint64_t groups = 0;
  uint64_t dense_groups = 0;
  uint64_t dense_bytes = 0;  // of this version's payloads, of groups that are dense
  bool dense = false;        // the version as a whole
  bool turned = false;       // `dense` differs from the version before
  // At most limits::kDenseGroupsShown each, largest wire_bytes first. A dense group that this
  // version did not change has the numbers of the last version that changed it.
  std::vector<GroupDensity> worst;
  std::vector<DensityTurn> turns;
};

// Lifecycle: one per snapshot. Threads: called only inside a capture, one at a time, except
// EncodesDense, which several threads may call.
class DensityWatch {
 public:
  // A group becomes dense after kVersions versions in a row in which at least kEnter of the changed
  // blocks were smaller dense, so that most attempts at positions were useless. It stops being
  // dense after kVersions in a row with a share below kLeave. Versions that do not change the group
  // do not count.
  static constexpr double kEnter = 7.0 / 8;
  static constexpr double kLeave = 3.0 / 4;
  static constexpr uint32_t kVersions = 2;
  // One in kRetry versions of a dense group is encoded both ways, to measure again. So is the
  // version after one in which a change took more than kGrowth times the bytes measured then, or in
  // which fewer than kLeave of the blocks were dense.
  static constexpr uint64_t kRetry = 16;
  static constexpr double kGrowth = 1.25;
  // A block in which a smaller share changed is encoded both ways. Below this share, positions cost
  // less than the zeros between steps of either sign, whatever the size of the steps. From this
  // share on, steps of 2 bits are smaller dense; steps of 14 bits from 0.9 on.
  static constexpr double kBlockShare = 2.0 / 3;
  // A version with at least this share of all weights' bytes is dense as a whole. Dense steps of
  // one update take 0.17 of an F32 tensor's bytes and 0.35 of a BF16 tensor's. Changes of one ulp
  // with their positions take 0.04 of a BF16 tensor if a tenth of its elements changed, 0.1 if half
  // did.
  static constexpr double kVersionShare = 1.0 / 8;

  explicit DensityWatch(const RankLayout& layout);

  // Returns whether a block of `slice` is encoded as dense steps without trying positions, if
  // `changed` of its `elements` changed.
  bool EncodesDense(RankSlice slice, uint64_t changed, uint64_t elements) const;

  // Called after a version was captured. `blocks` by rank block number.
  VersionDensity Learn(std::span<const EncodedBlock> blocks);

 private:
  struct Group {
    GroupDensity last;  // of the last version that changed it
    bool dense = false;
    bool both_ways = false;         // the next version is encoded both ways
    uint32_t against = 0;           // versions in a row that contradict `dense`
    uint64_t versions = 0;          // since `dense` last changed
    double bytes_for_a_change = 0;  // when it was last encoded both ways
  };
  // What `blocks` change, by group.
  std::vector<GroupDensity> Count(std::span<const EncodedBlock> blocks) const;
  // True if `dense` changed.
  static bool Judge(Group& group);

  const RankLayout& layout_;
  std::vector<uint32_t> group_of_;  // by shard
  std::vector<Group> groups_;
  uint64_t full_bytes_ = 0;
  bool version_dense_ = false;
};

}  // namespace dws
