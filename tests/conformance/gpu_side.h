// GPU memory at both ends of a conformance test: a sender's copy of its snapshot, and a receiver's
// target.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/spool/device_target.h"
#include "sender_daemon/publish/rank_state.h"
#include "tests/fakes/cuda/device_memory.h"

namespace dws {

// The copy that captures of weights on a GPU would keep.
class GpuSide {
 public:
  explicit GpuSide(const RankState& state) : snapshot_(*state.snapshot) {
    auto buffer = device_->AllocateToLend(snapshot_.AllBytes().size());
    REQUIRE(buffer.ok());
    memory_ = std::make_shared<const cuda::CudaBuffer>(*std::move(buffer));
    std::vector<RankSlice> slices;
    for (uint32_t s = 0; s < snapshot_.layout().slice_count(); ++s) slices.emplace_back(s);
    id_ = snapshot_.history().gpu_copies->Add(
        {.device = device_, .memory = memory_, .slices = std::move(slices)});
  }
  void Change() { snapshot_.history().gpu_copies->Change(id_); }
  // Both lay the slices out alike.
  void Update() { Write(0, snapshot_.AllBytes()); }
  // Flips a bit of the first slice; again: flips it back.
  void Damage() {
    damaged_ = !damaged_;
    const std::byte first = snapshot_.AllBytes()[0] ^ std::byte{damaged_ ? uint8_t{1} : uint8_t{0}};
    Write(0, ByteSpan(&first, 1));
  }

 private:
  void Write(uint64_t offset, ByteSpan bytes) {
    auto stream = device_->CreateStream();
    REQUIRE(stream.ok());
    REQUIRE(stream->CopyToDevice(memory_->address() + offset, bytes).ok());
    REQUIRE(stream->Synchronize().ok());
  }

  const cuda::CudaDevicePtr device_ = cuda::TestDevice();
  Snapshot& snapshot_;
  std::shared_ptr<const cuda::CudaBuffer> memory_;
  GpuCopies::Id id_ = 0;
  bool damaged_ = false;
};

// Brings what is lent to this process, where a test reads it.
class GpuTarget final : public DeviceTarget {
 public:
  explicit GpuTarget(const RankLayout& layout) : layout_(layout) {}

  bool Takes(TrainerRank, RankSlice) const override { return true; }
  Result<std::vector<uint8_t>> Copy(TrainerRank, std::span<const LentSlice> slices) override {
    std::vector<uint8_t> arrived;
    DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device_->CreateStream());
    for (const LentSlice& slice : slices) {
      const RankLayout::SliceEntry& entry = layout_.slice(slice.slice);
      std::vector<std::byte>& bytes = bytes_[slice.slice];
      bytes.resize(entry.size_bytes());
      DWS_ASSIGN_OR_RETURN(const uint64_t address, slice.memory->AddressOn(device_));
      DWS_RETURN_IF_ERROR(stream.CopyToHost(bytes, address + slice.offset_bytes));
      DWS_RETURN_IF_ERROR(stream.Synchronize());
      arrived.push_back(DigestBytes(bytes, entry.first_word) == slice.expected ? 1 : 0);
    }
    return arrived;
  }
  const std::vector<std::byte>& Of(RankSlice slice) const { return bytes_.at(slice); }

 private:
  const cuda::CudaDevicePtr device_ = cuda::TestDevice();
  const RankLayout& layout_;
  std::map<RankSlice, std::vector<std::byte>> bytes_;
};

}  // namespace dws
