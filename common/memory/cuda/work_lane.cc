#include "common/memory/cuda/work_lane.h"

#include "common/base/check.h"

namespace dws::cuda {
Result<WorkLane> WorkLane::Create(const CudaDevice& device) {
  WorkLane lane;
  DWS_ASSIGN_OR_RETURN(lane.stream_, device.CreateStream());
  DWS_ASSIGN_OR_RETURN(lane.host_, device.AllocatePinned(kBytesMax));
  DWS_ASSIGN_OR_RETURN(lane.twin_, device.Allocate(kBytesMax + kSlackBytes));
  DWS_ASSIGN_OR_RETURN(lane.scratch_, device.Allocate(kScratchBytes));
  return lane;
}

// The copies of the previous use may still read the host memory, so it waits for them.
Status WorkLane::Begin() {
  used_ = 0;
  return stream_.Synchronize();
}

WorkLane::Room WorkLane::Put(uint64_t size_bytes) {
  DWS_CHECK(size_bytes <= left());
  const Room room{.host = host_.host_bytes().subspan(used_, size_bytes),
                  .address = twin_.address() + used_};
  used_ = std::min(kBytesMax, Padded(used_ + size_bytes));
  return room;
}

Status WorkLane::Send() {
  if (used_ == 0) return OkStatus();
  return stream_.CopyToDevice(twin_.address(), host_.host_bytes().first(used_));
}

}  // namespace dws::cuda
