// The tensors of checkpoints as the codec sees them: whole, of one rank, in the order of their
// names. Pure.
//
// Bytes are bytes: a dtype that the codec does not know is carried as unsigned integers of the same
// width, elements smaller than a byte as bytes (CodecSpec). Nothing is lost but the meaning of a
// step.
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

// How a tensor is carried: C64 as U64, F4 and F6 as U8 [bytes], others as they are.
TensorSpec CodecSpec(const CheckpointTensor& tensor);

// The layout of whole tensors; rank slice i is tensors[i], which are by name. INVALID_ARGUMENT: as
// RankLayout::Create.
Result<RankLayout> LayoutOf(std::span<const CheckpointTensor* const> tensors);
Result<RankLayout> LayoutOf(const Checkpoint& checkpoint);

// The bytes of all its tensors; rank slice i has those at i.
std::vector<ByteSpan> BytesOf(const Checkpoint& checkpoint);

// A tensor that two checkpoints do not share: in one of them only, or of two dtypes or shapes.
struct TensorMismatch {
  std::string name;
  std::string what;  // "only in A", "BF16 [4, 4] in A, F32 [4, 4] in B"
};

// What two checkpoints have in common. Points into them.
struct TensorPairs {
  std::vector<const CheckpointTensor*> before;  // of A, by name
  std::vector<const CheckpointTensor*> after;   // the same of B
  std::vector<TensorMismatch> mismatches;       // by name
};
TensorPairs MatchTensors(const Checkpoint& a, const Checkpoint& b);

// "'a', 'b', 'c' and 7 more", for messages.
std::string NameList(std::span<const std::string> names);

}  // namespace dws::checkpoint
