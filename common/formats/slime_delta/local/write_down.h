// Step 4 of apply.h: computes the tensors of a local checkpoint after a version, window by window,
// and writes the changes to the redo record (redo.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// Tensor to its xxh3-128.
using TensorDigests = std::map<std::string, std::string>;

// What WriteDown reads.
struct WriteDownFrom {
  const VersionFolder& version;
  const safetensors::Checkpoint& checkpoint;  // mapped
  // Digests of the checkpoint before the version, to find damaged tensors; null: do not look for
  // damage.
  const TensorDigests* digests = nullptr;
};

// Adds the new bytes of every tensor that the version changes to `redo`; skips a tensor that
// already has them. DATA_LOSS: the version is damaged, or tensors of the checkpoint do not have
// their `digests`. FAILED_PRECONDITION: tensors are not in the checkpoint or do not get the digests
// that the version states, or a full checkpoint has fewer tensors. UNAVAILABLE: the version has
// changed since it was opened. Messages name the tensors. Others: of `redo`.
//
// A tensor that gets the digest that the version states was sound before: its old bytes are not
// hashed as well, unless the version has a weak checksum.
Status WriteDown(const WriteDownFrom& from, ThreadPool& pool, VersionWriter& redo);

// Returns the encoding of the redo record of a version. An entry with the encoding overwrite can be
// written any number of times, so the record takes it unchanged; other entries become runs.
Encoding EncodingOfRedo(const VersionIndex& version);

// The checksum of a mapped tensor, without keeping its pages.
std::string ChecksumOf(const safetensors::Checkpoint& checkpoint,
                       const safetensors::CheckpointTensor& tensor, ChecksumFormat format);

// DATA_LOSS with the names of tensors that are not as they were after `version`; OK if there are
// none.
Status CheckNoneDamaged(const safetensors::Checkpoint& checkpoint, uint64_t version,
                        std::vector<std::string> damaged);

// "a, b, c and 4 more".
std::string ShortList(std::vector<std::string> names);

}  // namespace dws::slime
