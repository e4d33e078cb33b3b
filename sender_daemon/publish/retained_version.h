// One published version as the sender retains it: its sealed delta object with the parsed manifest,
// and the digests of every slice. Immutable; whoever reads it holds a shared_ptr, which is its
// lease.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/delta_link.h"
#include "common/delta/objects/object.h"
#include "common/model/delta_manifest.h"
#include "common/model/delta_profile.h"
#include "sender_daemon/capture/density_watch.h"

namespace dws {

struct RetainedVersion {
  WeightVersion version;
  std::optional<WeightVersion> base;  // absent: no delta leads here, full tensors only
  std::vector<std::byte> object;      // empty without a base
  // The same changes as links of profile `other` have them; empty when that is no different.
  DeltaProfile other = DeltaProfile::kFast;
  std::vector<std::byte> other_object;
  ObjectHeader header;
  DeltaManifest manifest;     // of the object; identity only without a base
  std::vector<Digest> after;  // by rank slice
  uint64_t nnz = 0;
  std::array<uint64_t, kBlockModes> payload_bytes = {};  // of the object's blocks, by mode
  uint64_t split_payload_bytes = 0;                      // of class-split blocks
  uint64_t compared_blocks = 0;                          // as CapturedVersion
  uint64_t copied_blocks = 0;                            // as CapturedVersion
  double capture_seconds = 0;                            // of all passes over the trainer's memory
  VersionDensity density;                                // as CapturedVersion
  TimePoint accepted_at;                                 // when the trainer's Publish arrived

  // What a link of `profile` is served.
  const std::vector<std::byte>& object_of(DeltaProfile profile) const {
    return profile == other && !other_object.empty() ? other_object : object;
  }
  uint64_t other_bytes(DeltaProfile profile) const {
    return profile == other ? other_object.size() : 0;
  }
  uint64_t retained_bytes() const { return object.size() + other_object.size(); }

  // For whoever reads its blocks; this outlives it, and what is found looks into `object`.
  DeltaLink link() const;
};

using RetainedVersionPtr = std::shared_ptr<const RetainedVersion>;

}  // namespace dws
