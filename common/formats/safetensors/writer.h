// Writes safetensors files, and splits the tensors of a checkpoint into files.
//
// Each file is written to NAME.tmp, synced and renamed. The model is never in memory twice: the
// writer requests a tensor's bytes only when it writes them.
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

// Writes one file at `path` and replaces an existing one. `begin` and `end` of the tensors are
// ignored. INVALID_ARGUMENT, RESOURCE_EXHAUSTED: as MakeHeader; INVALID_ARGUMENT also when the
// source returns another number of bytes. Other errors come from the file system.
Status WriteTensorFile(FileSystem& files, const std::string& path, const Metadata& metadata,
                       std::vector<HeaderTensor> tensors, const TensorSource& source);

// Splits tensors into the files of a checkpoint, at least one. Tensors are sorted by name, so that
// the tensors of a layer share a file if `shard_bytes_max` allows it. INVALID_ARGUMENT: a duplicate
// name, or a size that is not a whole number of bytes. RESOURCE_EXHAUSTED: too many files for
// limits.h.
Result<std::vector<std::vector<HeaderTensor>>> SplitShards(std::vector<HeaderTensor> tensors,
                                                           uint64_t shard_bytes_max);

}  // namespace dws::safetensors
