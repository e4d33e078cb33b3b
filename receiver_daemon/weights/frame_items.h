// Turns fetched frames into the items that a device stages: the host's part of verification. The
// host checks checksums, the block index and its bounds; the device decodes payloads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/staging_run.h"
#include "receiver_daemon/weights/memory_backend.h"
#include "receiver_daemon/weights/slice_places.h"

namespace dws {

// The number of each frame's first result. A frame has one result for each place of its slice.
struct FrameResults {
  std::vector<size_t> first;  // by frame; the last element is the count
  size_t count() const { return first.back(); }
};
FrameResults NumberResults(const FrameSet& set, const SlicePlaces<cuda::Place>& places);

// Reads the frames of `set` whose slices `places` hold, some frames at a time, and passes their
// blocks to `add`; an item's group is its frame's number. A damaged frame is left out, and its
// error (DATA_LOSS, UNIMPLEMENTED) goes to `statuses`, by frame. Returns errors of `add`.
Status ForEachFrameItems(const FrameSet& set, const SlicePlaces<cuda::Place>& places,
                         const FrameResults& results, ThreadPool& pool, std::span<Status> statuses,
                         const std::function<Status(std::span<const cuda::StageItem>)>& add);

}  // namespace dws
