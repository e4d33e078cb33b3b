// Elements that lie side by side are copied to where they belong. Others go to a twin first, and
// are spread from there by the kernel that commits staged blocks.
#include "common/memory/cuda/dense_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws::cuda {
namespace {

// The size of the list of a piece if its elements are bytes, the smallest elements.
constexpr uint64_t kListBytes = 16 * sizeof(CommitBlock);

// Returns the position of element `e` of the place, in elements.
uint64_t Offset(const Place& place, uint64_t e) {
  return e / place.run_elements * place.stride_elements + e % place.run_elements;
}

}  // namespace

Result<DenseWriter::Lane> DenseWriter::MakeLane() const {
  static_assert(kPieceBytes % (limits::kBlockElements * sizeof(uint64_t)) == 0);
  static_assert(kPieceBytes / limits::kBlockElements * sizeof(CommitBlock) <= kListBytes);
  Lane lane;
  DWS_ASSIGN_OR_RETURN(lane.stream, device_->CreateStream());
  DWS_ASSIGN_OR_RETURN(lane.host, device_->AllocatePinned(kPieceBytes + kListBytes));
  DWS_ASSIGN_OR_RETURN(lane.twin, device_->Allocate(kPieceBytes + kListBytes));
  return lane;
}

Status DenseWriter::TakeLane(Lane& lane) {
  {
    MutexLock lock(mutex_);
    while (idle_.empty() && lanes_ == lanes_max_) returned_.Wait(mutex_);
    if (!idle_.empty()) {
      lane = std::move(idle_.back());
      idle_.pop_back();
      return OkStatus();
    }
    ++lanes_;
  }
  Result<Lane> made = MakeLane();
  if (made.ok()) {
    lane = *std::move(made);
    return OkStatus();
  }
  {
    MutexLock lock(mutex_);
    --lanes_;
    returned_.NotifyOne();
    if (lanes_ == 0 || !absl::IsResourceExhausted(made.status())) return made.status();
    lanes_max_ = lanes_;  // the lanes that exist must be enough
  }
  return TakeLane(lane);
}

void DenseWriter::ReturnLane(Lane lane) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(lane));
  returned_.NotifyOne();
}

Status DenseWriter::Write(const DenseRange& range, ByteSpan bytes) {
  DWS_CHECK(range.place.run_elements > 0 && bytes.size() % range.element_bytes == 0);
  if (bytes.empty()) return OkStatus();
  Lane lane;
  DWS_RETURN_IF_ERROR(TakeLane(lane));
  Status status;
  DenseRange piece = range;
  while (status.ok() && !bytes.empty()) {
    const ByteSpan part = bytes.first(std::min<uint64_t>(bytes.size(), kPieceBytes));
    status = WritePiece(lane, piece, part);
    // Also after a failure: the lane is used again.
    status.Update(lane.stream.Synchronize());
    piece.first_element += part.size() / range.element_bytes;
    bytes = bytes.subspan(part.size());
  }
  ReturnLane(std::move(lane));
  return status;
}

Status DenseWriter::WritePiece(const Lane& lane, const DenseRange& range, ByteSpan bytes) const {
  const MutableByteSpan host = lane.host.host_bytes();
  std::memcpy(host.data(), bytes.data(), bytes.size());
  const uint64_t count = bytes.size() / range.element_bytes;
  const uint64_t first = Offset(range.place, range.first_element);
  if (Offset(range.place, range.first_element + count - 1) - first == count - 1) {
    return lane.stream.CopyToDevice(range.place.base + first * range.element_bytes,
                                    host.first(bytes.size()));
  }
  std::vector<CommitBlock> blocks;
  for (uint64_t done = 0; done < count; done += blocks.back().entries) {
    blocks.push_back(
        {.staged = lane.twin.address() + done * range.element_bytes,
         .first_element = range.first_element + done,
         .entries = static_cast<uint32_t>(std::min<uint64_t>(count - done, limits::kBlockElements)),
         .place = range.place_index,
         .element_bytes = range.element_bytes,
         .dense = 1});
  }
  const ByteSpan list = std::as_bytes(std::span(blocks));
  DWS_CHECK(list.size() <= kListBytes);
  std::memcpy(host.data() + kPieceBytes, list.data(), list.size());
  DWS_RETURN_IF_ERROR(lane.stream.CopyToDevice(lane.twin.address(), host.first(bytes.size())));
  DWS_RETURN_IF_ERROR(lane.stream.CopyToDevice(lane.twin.address() + kPieceBytes,
                                               host.subspan(kPieceBytes, list.size())));
  return lane.stream.Launch(Kernel::kCommit,
                            CommitArgs{.blocks = lane.twin.address() + kPieceBytes,
                                       .places = places_,
                                       .arena = 0,
                                       .block_count = static_cast<uint32_t>(blocks.size())},
                            blocks.size());
}

}  // namespace dws::cuda
