// What a version makes of the tensors of a local checkpoint, computed beside them and written down
// (redo.h): step 4 of apply.h.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// Adds the new bytes of every tensor that `version` changes to `redo`; nothing of a tensor that has
// them already. FAILED_PRECONDITION: tensors that are not in `checkpoint`, or do not come to the
// digests that the version states, or a full checkpoint of fewer tensors; names them. DATA_LOSS:
// the version is damaged. Others: of `redo`.
Status WriteDown(const VersionFolder& version, const safetensors::Checkpoint& checkpoint,
                 ThreadPool& pool, VersionWriter& redo);

// "a, b, c and 4 more".
std::string ShortList(std::vector<std::string> names);

}  // namespace dws::slime
