// Weights on a GPU for sender tests: every rank slice in its own memory, contiguous or in strided
// runs, and a source that reads them.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/layout.h"
#include "sender_daemon/capture/device_shards.h"
#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

class GpuWeights {
 public:
  GpuWeights(const cuda::CudaDevicePtr& device, const RankLayout& layout)
      : device_(device), layout_(layout) {
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      // Every second slice is in runs with gaps and does not start at the beginning of its memory.
      const uint64_t elements = layout.slice(RankSlice(s)).elements;
      const uint64_t run = s % 2 == 0 ? std::max<uint64_t>(elements, 1) : 251;
      const uint64_t stride = s % 2 == 0 ? run : 257;
      const uint64_t bytes = ElementBytes(layout.slice(RankSlice(s)).dtype);
      auto memory = device->Allocate((CeilDiv(elements, run) * stride + 1) * bytes);
      REQUIRE(memory.ok());
      places_.emplace_back(RankSlice(s), cuda::Place{.base = memory->address() + bytes,
                                                     .run_elements = run,
                                                     .stride_elements = stride});
      memory_.push_back(*std::move(memory));
    }
  }

  const std::vector<DeviceShards::SlicePlace>& places() const { return places_; }

  // Writes the weights, as a trainer does in its optimizer's step.
  void Set(const Weights& weights) {
    for (const auto& [slice, place] : places_) {
      const std::vector<std::byte>& bytes = weights[slice.value()];
      const uint64_t element_bytes = ElementBytes(layout_.slice(slice).dtype);
      const cuda::CudaBuffer& memory = memory_[slice.value()];
      std::vector<std::byte> laid_out(memory.size_bytes(), std::byte{0xEE});
      for (uint64_t e = 0; e < layout_.slice(slice).elements; ++e) {
        const uint64_t at = e / place.run_elements * place.stride_elements + e % place.run_elements;
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(e * element_bytes), element_bytes,
                    laid_out.begin() + static_cast<ptrdiff_t>((at + 1) * element_bytes));
      }
      cuda::WriteDevice(*device_, memory.address(), laid_out);
    }
  }

 private:
  const cuda::CudaDevicePtr device_;
  const RankLayout& layout_;
  std::vector<cuda::CudaBuffer> memory_;  // by rank slice
  std::vector<DeviceShards::SlicePlace> places_;
};

class GpuSource final : public WeightSource {
 public:
  GpuSource(const cuda::CudaDevicePtr& device, const GpuWeights& weights,
            const DeviceShardsOptions& options)
      : shards_(device, weights.places(), options) {}
  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool) override {
    return shards_.Fetch(refs, as, snapshot, pool);
  }
  std::optional<DiffedBlock> Diffed(BlockRef ref) const override { return shards_.Diffed(ref); }
  void Read(BlockRef, MutableByteSpan) const override { FAIL("a GPU's blocks are viewed"); }
  ByteSpan View(BlockRef ref, size_t) const override { return shards_.View(ref); }

 private:
  DeviceShards shards_;
};

// Calls a test before each Fetch.
class Watched final : public WeightSource {
 public:
  Watched(WeightSource& source, std::function<void(int call)> before)
      : source_(source), before_(std::move(before)) {}
  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool) override {
    before_(++calls_);
    return source_.Fetch(refs, as, snapshot, pool);
  }
  std::optional<DiffedBlock> Diffed(BlockRef ref) const override { return source_.Diffed(ref); }
  void Read(BlockRef ref, MutableByteSpan block) const override { source_.Read(ref, block); }
  ByteSpan View(BlockRef ref, size_t size_bytes) const override {
    return source_.View(ref, size_bytes);
  }
  int calls() const { return calls_; }

 private:
  WeightSource& source_;
  const std::function<void(int)> before_;
  int calls_ = 0;
};

}  // namespace dws
