// Blocks of every mode: what codec tests, golden files and seeds are made with.
#pragma once

#include "common/base/bytes.h"
#include "common/delta/encoder.h"

namespace dws {

// True for the modes that carry steps and can only be applied to their base.
constexpr bool IsRelative(BlockMode mode) {
  return mode == BlockMode::kSplitRice || mode == BlockMode::kClassSplit ||
         mode == BlockMode::kDenseUlp;
}

struct EncodeOptions {
  // Absolute modes (raw, dense raw, dense zstd) need no old values but do not compose. A sender's
  // retained deltas use only relative modes; full tensors use only absolute ones.
  bool relative = true;
  bool absolute = false;
  bool zstd = false;  // also try dense zstd if absolute modes are allowed: smaller and slower
};

// Encodes `changes` of a block whose new state is `after`, which gives the element count and the
// absolute values. Without changes, if relative modes are allowed: kEmpty. With only absolute
// modes: dense, whatever the changes. At least one of the two must be allowed.
EncodedBlock EncodeBlock(DType dtype, const BlockChanges& changes, ByteSpan after,
                         const EncodeOptions& options);

}  // namespace dws
