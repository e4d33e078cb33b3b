// An engine in this process: memory for a whole layout, optionally in several copies (replicas),
// in host or device memory, and a control that records its calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/weights/attached_memory.h"
#include "receiver_daemon/weights/engine_weights.h"
#include "tests/fakes/cuda/device_memory.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {

// Views of all tensors, whole and row-major, one after the other from `offset_bytes`. Sets
// `end_bytes` to their end.
inline std::vector<EngineView> WholeViews(const LayoutSet& layouts, uint64_t offset_bytes,
                                          uint64_t& end_bytes) {
  std::vector<EngineView> views;
  end_bytes = offset_bytes;
  for (const auto& [name, tensor] : layouts.tensors()) {
    views.push_back({.engine_name = "engine." + name,
                     .tensor = name,
                     .dtype = tensor.spec.dtype,
                     .shape = tensor.spec.shape,
                     .strides = RowMajorStrides(tensor.spec.shape),
                     .offset_bytes = end_bytes});
    end_bytes += (tensor.spec.SizeBytes() + 63) / 64 * 64;
  }
  return views;
}

// Where a fake engine's weights are.
enum class MemoryKind : uint8_t { kHost, kCuda };
inline std::ostream& operator<<(std::ostream& out, MemoryKind kind) {
  return out << (kind == MemoryKind::kHost ? "host" : "CUDA");
}

class FakeEngine {
 public:
  // `copies` of every tensor. `device`: of kCuda.
  explicit FakeEngine(LayoutSetPtr layouts, int copies = 1, uint64_t generation = 1,
                      MemoryKind kind = MemoryKind::kHost,
                      const cuda::CudaDevicePtr& device = cuda::TestDevice()) {
    std::vector<EngineView> views;
    uint64_t bytes = 0;
    for (int copy = 0; copy < copies; ++copy) {
      for (EngineView& view : WholeViews(*layouts, bytes, bytes)) views.push_back(std::move(view));
    }
    const std::vector<uint64_t> region_bytes = {bytes};
    auto mapping = MapEngine(*layouts, views, region_bytes, {});
    DWS_CHECK(mapping.ok());
    auto memory = std::make_shared<AttachedMemory>();
    memory->generation = Generation(generation);
    memory->mapping = *std::move(mapping);
    auto created = CreateHostRegion("fake-engine", bytes);
    DWS_CHECK(created.ok());
    for (const MappedSlice& slice : memory->mapping.slices) {
      auto map = SegmentMap::Create(created->region.mutable_bytes(), slice.offset_bytes, slice.runs,
                                    slice.element_bytes);
      DWS_CHECK(map.ok());
      places_[slice.slice].push_back(*map);
    }
    bytes_ = created->region.mutable_bytes();
    if (kind == MemoryKind::kHost) {
      memory->handed->regions.push_back(std::move(created->region));
    } else {
      DWS_CHECK(device != nullptr);
      cuda::CudaRegion region = cuda::MakeRegion(device, bytes);
      address_ = region.address();
      stream_ = device->CreateStream().value();
      twin_ = std::move(created->region);
      memory->handed->regions.push_back(std::move(region));
    }
    memory_ = memory;
    auto made = EngineWeights::Create(std::move(layouts), {memory_});
    DWS_CHECK(made.ok());
    weights = *std::move(made);
  }

  // The slice's bytes in copy `copy`, in slice order.
  SliceBytes Read(uint32_t rank, uint32_t slice, size_t copy = 0) const {
    Pull();
    const SegmentMap& place = Places(rank, slice)[copy];
    SliceBytes bytes(place.element_count() * place.element_bytes());
    place.Gather(0, bytes);
    return bytes;
  }
  void Write(uint32_t rank, uint32_t slice, const SliceBytes& bytes, size_t copy = 0) const {
    Pull();
    Places(rank, slice)[copy].Write(0, bytes);
    if (address_ != 0) {
      DWS_CHECK(stream_.CopyToDevice(address_, bytes_).ok() && stream_.Synchronize().ok());
    }
  }
  // Sets all copies to the trainer's `version`.
  void Load(const FakeTrainer& trainer, uint64_t version) const {
    for (uint32_t r = 0; r < trainer.ranks().size(); ++r) {
      for (uint32_t s = 0; s < trainer.ranks()[r]->slice_count(); ++s) {
        const size_t copies = Places(r, s).size();
        for (size_t c = 0; c < copies; ++c) Write(r, s, trainer.At(version, r)[s], c);
      }
    }
  }
  bool Equals(const FakeTrainer& trainer, uint64_t version) const {
    for (uint32_t r = 0; r < trainer.ranks().size(); ++r) {
      for (uint32_t s = 0; s < trainer.ranks()[r]->slice_count(); ++s) {
        const size_t copies = Places(r, s).size();
        for (size_t c = 0; c < copies; ++c) {
          if (Read(r, s, c) != trainer.At(version, r)[s]) return false;
        }
      }
    }
    return true;
  }

  // Where the slice's copies are: in the weights, or in the host twin of device memory.
  const std::vector<SegmentMap>& Places(uint32_t rank, uint32_t slice) const {
    static const std::vector<SegmentMap> none;
    const auto found = places_.find({.rank = TrainerRank(rank), .slice = RankSlice(slice)});
    return found == places_.end() ? none : found->second;
  }
  const AttachedMemoryPtr& memory() const { return memory_; }
  EngineWeightsPtr weights;

 private:
  void Pull() const {
    if (address_ == 0) return;
    DWS_CHECK(stream_.CopyToHost(bytes_, address_).ok() && stream_.Synchronize().ok());
  }

  AttachedMemoryPtr memory_;
  MutableByteSpan bytes_;  // the weights, or the host twin of device memory
  std::map<OwnedSlice, std::vector<SegmentMap>> places_;  // inside bytes_
  HostRegion twin_;
  uint64_t address_ = 0;  // of device memory
  cuda::CudaStream stream_;
};

// Accepts every call unless told to fail; records "pause", "post_commit 2", "resume 2".
class FakeControl final : public EngineControl {
 public:
  Status Pause(Duration) override {
    log.push_back("pause");
    if (on_pause) on_pause();
    return fail_pause;
  }
  Duration StoppedFor() const override { return stopped_for; }
  Status PostCommit(WeightVersion version, Duration) override {
    log.push_back(fmt::format("post_commit {}", version.value()));
    return fail_post_commit;
  }
  void OnWriteBegin(const TensorContents& to_be_written) override { contents = to_be_written; }
  Status Resume(const EngineVersion& version) override {
    log.push_back(fmt::format("resume {}", version.version.value()));
    if (fail_resume.ok()) resumed = version;
    return fail_resume;
  }

  std::vector<std::string> log;
  std::function<void()> on_pause;
  Duration stopped_for = Duration::zero();
  Status fail_pause;
  Status fail_post_commit;
  Status fail_resume;
  EngineVersion resumed;
  TensorContents contents;
};

// The live state of an engine that was just read; LiveAt's also says that it is `version`.
inline LiveState ReadLive(const EngineWeights& weights, ThreadPool& pool) {
  LiveState live;
  for (uint32_t r = 0; r < weights.layouts().world_size(); ++r) {
    auto slices = weights.ComputeStates(TrainerRank(r), pool);
    DWS_CHECK(slices.ok());
    live.ranks.push_back({.slices = *std::move(slices), .published = {}, .state_token = {}});
  }
  return live;
}

inline LiveState LiveAt(const FakeTrainer& trainer, const EngineWeights& weights, uint64_t version,
                        ThreadPool& pool) {
  LiveState live = ReadLive(weights, pool);
  for (uint32_t r = 0; r < live.ranks.size(); ++r) {
    live.ranks[r].published = trainer.Digests(version, r);
    live.ranks[r].state_token = StateToken(live.ranks[r].published);
  }
  live.at = VersionAt{.stream = trainer.stream(), .version = WeightVersion(version)};
  return live;
}

}  // namespace dws
