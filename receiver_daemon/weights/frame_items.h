// From fetched frames to what a device stages: the host's part of verification. Checksums, the
// block index and the bounds of it are checked here; payloads are decoded on the device.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/cuda/staging_run.h"
#include "receiver_daemon/weights/memory_backend.h"
#include "receiver_daemon/weights/slice_places.h"

namespace dws {

// Where the results of each frame begin: those of a frame are numbered by place.
struct FrameResults {
  std::vector<size_t> first;  // by frame, and the end
  size_t count() const { return first.back(); }
};
FrameResults NumberResults(const FrameSet& set, const SlicePlaces<cuda::Place>& places);

// Reads the frames of `set` that `places` hold, a number of frames at a time, and hands their
// blocks to `add` (groups are frames). `statuses`, by frame, gets DATA_LOSS for the damaged ones,
// which are left out. Errors are those of `add`.
Status ForEachFrameItems(const FrameSet& set, const SlicePlaces<cuda::Place>& places,
                         const FrameResults& results, ThreadPool& pool, std::span<Status> statuses,
                         const std::function<Status(std::span<const cuda::StageItem>)>& add);

}  // namespace dws
