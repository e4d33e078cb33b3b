// Limits what a version folder may claim if it is a version of a checkpoint that exists here. The
// claims are compared before anything large is read: a delta of another model, or a folder made to
// exhaust memory, is refused because of its index or its headers. A full version may have other
// tensors than the checkpoint (local/replacement.h compares them), so only its sizes and counts are
// limited: to twice as many tensors, and a few more for a small checkpoint.
#pragma once

#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/safetensors/claim_limits.h"
#include "common/formats/slime_delta/version_index.h"

namespace dws::slime {

// For the index of a version: no larger than an index of so many tensors can be.
safetensors::ClaimLimits IndexLimits(const safetensors::Checkpoint& checkpoint);

// FAILED_PRECONDITION: the index of a delta names a tensor that the checkpoint lacks.
Status CheckNames(const safetensors::Checkpoint& checkpoint, const VersionIndex& index);

// For its shards: headers no larger than those of entries of so many tensors, and for a delta no
// other names, and entries no larger than the encoding can make them. FAILED_PRECONDITION: another
// name. DATA_LOSS: an entry that is too large. `checkpoint` and `index` outlive the result.
safetensors::ClaimLimits ShardLimits(const safetensors::Checkpoint& checkpoint,
                                     const VersionIndex& index);

}  // namespace dws::slime
