// The bytes that slime would send for the same change with encoding xor. It really makes the parts
// that determine the sizes: new ^ old of every changed tensor in one zstd frame of level 1, the
// headers, and the index.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "tools/checkpoint/parts/progress.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

// The total size of all files of a version folder. Tensors are compressed in parallel, each as a
// stream, so each worker needs only a few megabytes. Errors of the progress.
Result<uint64_t> MeasureSlime(const TensorPairs& pairs, ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
