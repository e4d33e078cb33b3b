// Writes safetensors files and whole checkpoints, as HuggingFace lays them out.
//
// Each file is written to NAME.tmp, synced and renamed; the index of a sharded checkpoint comes
// last. A writer that dies leaves a folder that Checkpoint::Open refuses. The model is never held
// twice: a tensor's bytes are asked for when their turn comes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/header.h"
#include "common/model/limits.h"

namespace dws::safetensors {

// The bytes of a tensor, valid until it is asked for the next one. Called once for each tensor, in
// the order they are written, from the writing thread. Its errors end the writing.
using TensorSource = std::function<Result<ByteSpan>(const HeaderTensor& tensor)>;

struct CheckpointWriteOptions {
  Metadata metadata = {{"format", "pt"}};  // of each file; transformers asks for "format"
  // Of one file's tensors; a larger tensor has a file of its own.
  uint64_t shard_bytes_max = limits::kCheckpointShardBytesDefault;
};

// One file at `path`, in the place of what was there. `begin` and `end` of the tensors are ignored.
// INVALID_ARGUMENT, RESOURCE_EXHAUSTED: as MakeHeader; INVALID_ARGUMENT also when the source gives
// another number of bytes. Others: of the file system.
Status WriteTensorFile(FileSystem& files, const std::string& path, const Metadata& metadata,
                       std::vector<HeaderTensor> tensors, const TensorSource& source);

// The tensors of each file of a checkpoint, by name, so that a layer's share a file, as far as
// `shard_bytes_max` goes; at least one file. INVALID_ARGUMENT: a name that stands twice, or no
// whole bytes. RESOURCE_EXHAUSTED: too many files for limits.h.
Result<std::vector<std::vector<HeaderTensor>>> SplitShards(std::vector<HeaderTensor> tensors,
                                                           uint64_t shard_bytes_max);

// A checkpoint in `folder`, which is made: model.safetensors when one file holds all, or else
// model-00001-of-00003.safetensors and so on, tensors by name, and the index. ALREADY_EXISTS: the
// folder has safetensors files or an index. Other errors as above; the folder is then not a
// checkpoint, and what was written stays in it.
Status WriteCheckpoint(FileSystem& files, const std::string& folder,
                       std::vector<HeaderTensor> tensors, const TensorSource& source,
                       const CheckpointWriteOptions& options);

}  // namespace dws::safetensors
