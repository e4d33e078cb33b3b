#include "tools/gpu_check/sections/commit_case.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kPlentyBytes = uint64_t{1} << 42;

bool Equal(const cuda::KernelDigest& found, const Digest& expected) {
  return found.lane0 == expected.lane0 && found.lane1 == expected.lane1;
}

}  // namespace

Result<std::unique_ptr<CommitCase>> CommitCase::Create(const BenchDevice& device,
                                                       uint64_t unit_elements, uint32_t copies,
                                                       cuda::DutyCycle duty) {
  std::unique_ptr<CommitCase> made(new CommitCase(device, unit_elements, copies));
  const uint64_t unit_bytes = unit_elements * 2;
  DWS_ASSIGN_OR_RETURN(made->weights_bytes_, device.device->Allocate(unit_bytes * copies));
  std::vector<cuda::Place> places;
  for (uint32_t copy = 0; copy < copies; ++copy) {
    places.push_back({.base = made->weights_bytes_.address() + copy * unit_bytes,
                      .run_elements = unit_elements,
                      .stride_elements = unit_elements});
    for (uint64_t at = 0; at < unit_elements; at += limits::kBlockElements) {
      made->digest_blocks_.push_back({.first_element = at,
                                      .first_word = at * 2 / 8,
                                      .elements = limits::kBlockElements,
                                      .place = copy,
                                      .result = copy,
                                      .element_bytes = 2});
    }
  }
  DWS_ASSIGN_OR_RETURN(made->weights_, cuda::DeviceWeights::Create(device.device, places, duty));
  return made;
}

Status CommitCase::Load(const EncodedUnit& unit) {
  unit_ = &unit;
  items_ = ItemsOf(unit, copies_);
  Drop();
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device_.device->CreateStream());
  DWS_RETURN_IF_ERROR(stream.CopyToDevice(weights_bytes_.address(), unit.before));
  // Doubles what is there with each copy: one transfer over PCIe for weights of any size.
  for (uint64_t copied = unit.before.size(); copied < size_bytes();) {
    const uint64_t more = std::min(copied, size_bytes() - copied);
    DWS_RETURN_IF_ERROR(
        stream.CopyOnDevice(weights_bytes_.address() + copied, weights_bytes_.address(), more));
    copied += more;
  }
  return stream.Synchronize();
}

Status CommitCase::Stage() {
  StagingBudget budget(kPlentyBytes);
  cuda::StagingRun run(*weights_, cuda::StagingRun::Mode::kKeep, copies_, &budget);
  DWS_RETURN_IF_ERROR(run.Add(items_, *device_.pool));
  DWS_ASSIGN_OR_RETURN(cuda::StagingRun::Outcome outcome, run.Finish());
  for (const uint32_t failures : outcome.failures) {
    if (failures > 0) return DataLossError("{} blocks of a copy are reported as damaged", failures);
  }
  differences_ = std::move(outcome.differences);
  staged_ = std::move(outcome.staged);
  return OkStatus();
}

Status CommitCase::Seal() {
  const std::vector<uint8_t> kept = {1};
  return staged_.Seal(*weights_, kept);
}

Status CommitCase::Commit() {
  DWS_RETURN_IF_ERROR(staged_.BeginCommit(*weights_));
  return weights_->Synchronize();
}

Result<std::vector<cuda::KernelDigest>> CommitCase::Digests() {
  return weights_->Digests(digest_blocks_, copies_, Pace::kPaused);
}

Status CommitCase::CheckPrediction() const {
  for (uint32_t copy = 0; copy < copies_; ++copy) {
    if (!Equal(differences_[copy], unit_->difference)) {
      return DataLossError("staging copy {} of {} predicts another digest than the codec", copy,
                           copies_);
    }
  }
  return OkStatus();
}

Status CommitCase::CheckWeights(bool after) {
  const Digest expected = DigestBytes(after ? unit_->after : unit_->before, 0);
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> digests, Digests());
  for (uint32_t copy = 0; copy < copies_; ++copy) {
    if (!Equal(digests[copy], expected)) {
      return DataLossError("copy {} of {} is not at the {} version", copy, copies_,
                           after ? "second" : "first");
    }
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
