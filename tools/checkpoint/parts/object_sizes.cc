// Frames are dropped as they are made, so that a delta need not fit into memory.
#include "tools/checkpoint/parts/object_sizes.h"

#include <array>

#include "common/delta/objects/object_writer.h"

namespace dws::checkpoint {

Result<ObjectSizes> MeasureObjects(const Walk& walk, std::string_view step, BlockSource& source) {
  ObjectWriter fast(DropFrame);
  ObjectWriter wan(DropFrame);
  const std::array<EncodeTarget, 2> targets = {
      EncodeTarget{.encoding = Encoding::kFast, .writer = &fast},
      EncodeTarget{.encoding = Encoding::kWan, .writer = &wan}};
  ObjectSizes sizes;
  DWS_ASSIGN_OR_RETURN(sizes.changes, EncodeDifference(walk, step, source, targets));
  const DeltaManifest identity{.version = WeightVersion(2),
                               .base_version = WeightVersion(1),
                               .layout_signature = walk.layout.signature(),
                               .state_token = StateToken(DigestsAfter(sizes.changes))};
  sizes.fast_bytes = fast.Finish(identity).size() + fast.frames_bytes();
  sizes.wan_bytes = wan.Finish(identity).size() + wan.frames_bytes();
  return sizes;
}

}  // namespace dws::checkpoint
