// One published version as the sender retains it: its sealed delta object with the parsed manifest,
// and the digests of every slice. Immutable; a reader's shared_ptr keeps it alive.
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
#include "sender_daemon/capture/capture_seconds.h"
#include "sender_daemon/capture/density_watch.h"
#include "sender_daemon/capture/full/full_watch.h"

namespace dws {

// A recorded version and its delta. Immutable.
struct RetainedVersion {
  WeightVersion version;
  std::optional<WeightVersion> base;  // absent: no delta leads to this version, full tensors only
  FullCause full = FullCause::kNone;  // why, if it was captured so
  std::vector<std::byte> object;      // empty without a base
  // The same changes, encoded for profile `other`; empty if that makes no difference.
  DeltaProfile other = DeltaProfile::kFast;
  std::vector<std::byte> other_object;
  ObjectHeader header;
  DeltaManifest manifest;     // of the object; without a base only the identity
  std::vector<Digest> after;  // by rank slice
  // The state tokens of the same weights in coarser layouts, which receivers may still report.
  std::vector<Digest> former_tokens;
  uint64_t nnz = 0;
  std::array<uint64_t, kBlockModes> payload_bytes = {};  // of the object's blocks, by mode
  uint64_t split_payload_bytes = 0;                      // of class-split blocks
  uint64_t compared_blocks = 0;                          // as CapturedVersion
  uint64_t copied_blocks = 0;                            // as CapturedVersion
  uint64_t listed_blocks = 0;                            // as CapturedVersion
  double capture_seconds = 0;                            // in all passes over the trainer's memory
  CaptureSeconds stages;
  VersionDensity density;  // as CapturedVersion
  TimePoint accepted_at;   // when the trainer's Publish arrived

  // The object that is served to links of `profile`.
  const std::vector<std::byte>& object_of(DeltaProfile profile) const {
    return profile == other && !other_object.empty() ? other_object : object;
  }
  uint64_t other_bytes(DeltaProfile profile) const {
    return profile == other ? other_object.size() : 0;
  }
  // Returns the bytes that a receiver fetches for it if it follows: the delta, or all tensors of
  // `full_bytes`.
  uint64_t wire_bytes(uint64_t full_bytes) const {
    return base.has_value() ? object.size() : full_bytes;
  }
  uint64_t retained_bytes() const { return object.size() + other_object.size(); }

  // Returns whether a receiver that reports this version with `token` can have these weights.
  bool Has(const Digest& token) const;

  // For reading its blocks. This outlives the link; the frames that the link finds point into
  // `object`.
  DeltaLink link() const;
};

using RetainedVersionPtr = std::shared_ptr<const RetainedVersion>;

}  // namespace dws
