// Writes safetensors files and whole checkpoints in HuggingFace's layout.
//
// Each file is written to NAME.tmp, synced and renamed; the index of a sharded checkpoint is
// written last. A writer that dies leaves a folder that Checkpoint::Open refuses. The model is
// never in memory twice: the writer requests a tensor's bytes only when it writes them.
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

// Returns the bytes of a tensor, valid until the next call. Called once for each tensor, in the
// order of writing, on the writing thread. An error ends the writing.
using TensorSource = std::function<Result<ByteSpan>(const HeaderTensor& tensor)>;

struct CheckpointWriteOptions {
  Metadata metadata = {{"format", "pt"}};  // of each file; transformers requires "format"
  // Limit for the tensors of one file; a larger tensor gets a separate file.
  uint64_t shard_bytes_max = limits::kCheckpointShardBytesDefault;
};

// Writes one file at `path` and replaces an existing one. `begin` and `end` of the tensors are
// ignored. INVALID_ARGUMENT, RESOURCE_EXHAUSTED: as MakeHeader; INVALID_ARGUMENT also when the
// source returns another number of bytes. Others: of the file system.
Status WriteTensorFile(FileSystem& files, const std::string& path, const Metadata& metadata,
                       std::vector<HeaderTensor> tensors, const TensorSource& source);

// Splits tensors into the files of a checkpoint, at least one. Tensors are sorted by name, so that
// those of a layer share a file where `shard_bytes_max` allows it. INVALID_ARGUMENT: a duplicate
// name, or a size that is not a whole number of bytes. RESOURCE_EXHAUSTED: too many files for
// limits.h.
Result<std::vector<std::vector<HeaderTensor>>> SplitShards(std::vector<HeaderTensor> tensors,
                                                           uint64_t shard_bytes_max);

// Writes a checkpoint to `folder`, which it creates: model.safetensors when one file is enough,
// otherwise model-00001-of-00003.safetensors and so on, with tensors by name, and the index.
// ALREADY_EXISTS: the folder has safetensors files or an index. Other errors as above; the folder
// is then not a checkpoint, and the files written so far stay in it.
Status WriteCheckpoint(FileSystem& files, const std::string& folder,
                       std::vector<HeaderTensor> tensors, const TensorSource& source,
                       const CheckpointWriteOptions& options);

}  // namespace dws::safetensors
