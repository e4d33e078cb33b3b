// The tensors of checkpoints in the form that the codec needs: whole, of one rank, in the order of
// their names. Pure.
//
// A dtype that the codec does not support is encoded as unsigned integers of the same width;
// elements smaller than a byte are encoded as bytes (CodecSpec). No bits are lost; only the numeric
// steps between values have no meaning then.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/model/layout.h"
#include "common/model/tensor_spec.h"

namespace dws::checkpoint {

using safetensors::Checkpoint;
using safetensors::CheckpointTensor;

// The dtype and shape for the codec: C64 becomes U64, F4 and F6 become U8 [bytes], others stay.
TensorSpec CodecSpec(const CheckpointTensor& tensor);

// The layout of whole tensors, which are sorted by name; rank slice i is tensors[i].
// INVALID_ARGUMENT: as RankLayout::Create.
Result<RankLayout> LayoutOf(std::span<const CheckpointTensor* const> tensors);
Result<RankLayout> LayoutOf(const Checkpoint& checkpoint);

// The bytes of all tensors of a checkpoint; those of rank slice i are at i.
std::vector<ByteSpan> BytesOf(const Checkpoint& checkpoint);

// A tensor that is in only one of two checkpoints, or differs in dtype or shape.
struct TensorMismatch {
  std::string name;
  std::string what;  // "only in A", "BF16 [4, 4] in A, F32 [4, 4] in B"
};

// The tensors that two checkpoints have in common, and the others. Points into both checkpoints.
struct TensorPairs {
  std::vector<const CheckpointTensor*> before;  // of A, by name
  std::vector<const CheckpointTensor*> after;   // the same tensors of B
  std::vector<TensorMismatch> mismatches;       // by name
};
TensorPairs MatchTensors(const Checkpoint& a, const Checkpoint& b);

// "'a', 'b', 'c' and 7 more", for messages.
std::string NameList(std::span<const std::string> names);

}  // namespace dws::checkpoint
