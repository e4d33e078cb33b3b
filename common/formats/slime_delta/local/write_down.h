// Step 4 of apply.h: computes the tensors of a local checkpoint after a version, in separate
// memory, and writes the changes to the redo record (redo.h).
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// Adds the new bytes of every tensor that `version` changes to `redo`; skips a tensor that already
// has them. FAILED_PRECONDITION: tensors are not in `checkpoint` or do not get the digests that the
// version states, or a full checkpoint has fewer tensors; the message names them. DATA_LOSS: the
// version is damaged. Others: of `redo`.
Status WriteDown(const VersionFolder& version, const safetensors::Checkpoint& checkpoint,
                 ThreadPool& pool, VersionWriter& redo);

// "a, b, c and 4 more".
std::string ShortList(std::vector<std::string> names);

}  // namespace dws::slime
