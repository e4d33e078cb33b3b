#include "sender_daemon/capture/device_snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/transport/same_host/gpu_copy_places.h"

namespace dws {
namespace {

// Bytes that a thread copies at once.
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

}  // namespace

DeviceSnapshot::~DeviceSnapshot() {
  if (!is_copy()) return;
  copies_->Remove(id_);
  left_->Leave(*device_, copy_);
}

void DeviceSnapshot::Distrust() {
  trusted_ = false;
  if (is_copy()) copies_->Distrust(id_);
}

// Returns how many bytes the slices take. The snapshot aligns them alike.
uint64_t DeviceSnapshot::Arrange(Snapshot& snapshot) {
  extents_.clear();
  offsets_.assign(snapshot.layout().slice_count(), 0);
  const GpuCopyPlaces places(snapshot.layout(), slices_);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ByteSpan bytes = snapshot.SliceBytes(slices_[i]);
    const auto host_offset = static_cast<uint64_t>(bytes.data() - snapshot.AllBytes().data());
    const uint64_t at = places.offsets[i];
    const uint64_t end = i + 1 < slices_.size() ? places.offsets[i + 1] : places.size_bytes;
    const uint64_t padded = end - at;
    offsets_[slices_[i].value()] = at;
    if (!extents_.empty() &&
        extents_.back().host_offset + extents_.back().size_bytes == host_offset) {
      extents_.back().size_bytes += padded;
    } else {
      extents_.push_back({.host_offset = host_offset, .device_offset = at, .size_bytes = padded});
    }
  }
  return places.size_bytes;
}

Status DeviceSnapshot::TakeCopy(Snapshot& snapshot) {
  const uint64_t size = size_bytes_ = Arrange(snapshot);
  left_when_short_ = left_->Count(*device_);
  DWS_ASSIGN_OR_RETURN(const uint64_t free, device_->FreeBytes());
  std::shared_ptr<const cuda::CudaBuffer> memory = left_->TakeOver(*device_, size);
  const bool taken_over = memory != nullptr;
  if (!taken_over && free >= spare_bytes_ && free - spare_bytes_ >= size) {
    Result<cuda::CudaBuffer> made = device_->AllocateToLend(size);
    if (made.ok() && made->size_bytes() > 0) {
      memory = std::make_shared<const cuda::CudaBuffer>(*std::move(made));
    } else if (!made.ok() && !absl::IsResourceExhausted(made.status())) {
      return made.status();
    }
  }
  if (memory != nullptr) {
    copy_ = std::move(memory);
    copies_ = snapshot.history().gpu_copies;
    id_ = copies_->Add({.device = device_, .memory = copy_, .slices = slices_});
    trusted_ = false;
  } else {
    for (const RankSlice slice : slices_) {
      offsets_[slice.value()] =
          static_cast<uint64_t>(snapshot.SliceBytes(slice).data() - snapshot.AllBytes().data());
    }
  }
  LogInfo("gpu_snapshot", {{"gpu", device_->uuid()},
                           {"memory", is_copy() ? "gpu" : "host"},
                           {"bytes", size},
                           {"taken_over", taken_over},
                           {"gpu_free_bytes", free},
                           {"gpu_spare_bytes", spare_bytes_}});
  return OkStatus();
}

Status DeviceSnapshot::TakeMemory(Snapshot& snapshot) {
  DWS_RETURN_IF_ERROR(TakeCopy(snapshot));
  if (is_copy()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(pinned_, device_->Pin(snapshot.AllBytes()));
  return OkStatus();
}

Status DeviceSnapshot::Prepare(Snapshot& snapshot, const cuda::CudaStream& stream,
                               MutableByteSpan room, ThreadPool& pool, bool idle) {
  if (!is_copy() && pinned_.size_bytes() == 0) {
    DWS_RETURN_IF_ERROR(TakeMemory(snapshot));
  } else if (!is_copy() && idle && MayTakeCopy()) {
    DWS_RETURN_IF_ERROR(TakeCopy(snapshot));
  }
  DWS_CHECK(is_copy() || pinned_.host_bytes().data() == snapshot.AllBytes().data());
  return MakeCurrent(snapshot, stream, room, pool);
}

// A loan's memory is free a moment after the loan has ended, so free memory counts too, once there
// was a loan.
bool DeviceSnapshot::MayTakeCopy() const {
  if (left_->Count(*device_) != left_when_short_) return true;
  if (!left_->Any(*device_)) return false;
  const Result<uint64_t> free = device_->FreeBytes();
  return free.ok() && *free >= spare_bytes_ && *free - spare_bytes_ >= size_bytes_;
}

Status DeviceSnapshot::MakeCurrent(Snapshot& snapshot, const cuda::CudaStream& stream,
                                   MutableByteSpan room, ThreadPool& pool) {
  if (is_copy()) copies_->Change(id_);
  if (trusted_ && undone_ == snapshot.history().undone) return OkStatus();
  // The first version gathers every block into the copy, so there is nothing to copy before it.
  if (is_copy() && snapshot.version().has_value()) {
    DWS_RETURN_IF_ERROR(CopyAll(snapshot.AllBytes(), stream, room, pool));
  }
  trusted_ = true;
  undone_ = snapshot.history().undone;
  return OkStatus();
}

Result<bool> DeviceSnapshot::BeginUpdate(Snapshot& snapshot, const cuda::CudaStream& stream,
                                         MutableByteSpan room, ThreadPool& pool) {
  if (!is_copy() && (offsets_.empty() || MayTakeCopy())) {
    DWS_RETURN_IF_ERROR(TakeCopy(snapshot));
  }
  if (!is_copy()) return false;
  const bool lacks_changes = trusted_ && undone_ == snapshot.history().undone;
  DWS_RETURN_IF_ERROR(MakeCurrent(snapshot, stream, room, pool));
  return lacks_changes;
}

Status DeviceSnapshot::CopyAll(ByteSpan bytes, const cuda::CudaStream& stream, MutableByteSpan room,
                               ThreadPool& pool) const {
  DWS_CHECK(!room.empty());
  for (const Extent& extent : extents_) {
    DWS_CHECK(extent.host_offset <= bytes.size() &&
              extent.size_bytes <= bytes.size() - extent.host_offset);
    for (uint64_t done = 0; done < extent.size_bytes;) {
      const uint64_t size = std::min<uint64_t>(room.size(), extent.size_bytes - done);
      const std::byte* const from = bytes.data() + extent.host_offset + done;
      pool.ParallelFor(CeilDiv(size, kChunkBytes), [&](size_t chunk, size_t) {
        const uint64_t at = chunk * kChunkBytes;
        std::memcpy(room.data() + at, from + at, std::min(kChunkBytes, size - at));
      });
      DWS_RETURN_IF_ERROR(
          stream.CopyToDevice(copy_->address() + extent.device_offset + done, room.first(size)));
      DWS_RETURN_IF_ERROR(stream.Synchronize());
      done += size;
    }
  }
  return OkStatus();
}

uint64_t DeviceSnapshot::Address(const Snapshot& snapshot, BlockRef ref) const {
  DWS_CHECK(ref.slice.value() < offsets_.size());
  const uint64_t base = is_copy() ? copy_->address() : pinned_.address();
  return base + offsets_[ref.slice.value()] +
         uint64_t{ref.block} * limits::kBlockElements *
             ElementBytes(snapshot.layout().slice(ref.slice).dtype);
}

}  // namespace dws
