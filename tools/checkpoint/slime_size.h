// What slime would send for the same change: its files of encoding xor really made, as far as their
// sizes need it (every changed tensor's new ^ old in one zstd frame of level 1, headers, index).
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "tools/checkpoint/progress.h"
#include "tools/checkpoint/tensors.h"

namespace dws::checkpoint {

// Bytes of all files of a version folder. Tensors are compressed in parallel, each as a stream:
// what is held is a few megabytes a worker. Errors of the progress.
Result<uint64_t> MeasureSlime(const TensorPairs& pairs, ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
