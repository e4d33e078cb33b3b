// Values that are read without the lock are only hints: a reader that finds no frames looks at the
// stage next.
#include "sender_daemon/capture/open_delta.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Bytes that a class table takes in the manifest: class-split blocks of a slice have to save more.
constexpr uint64_t kClassTableCost = kClassesMax + 3;

// Bytes that the other profile's blocks of a slice save. Raw blocks save none: they are for speed.
uint64_t Saved(std::span<const EncodedBlock> relative, std::span<const EncodedBlock> other) {
  uint64_t saved = 0;
  for (size_t b = 0; b < other.size(); ++b) {
    if (other[b].mode == BlockMode::kClassSplit) {
      DWS_CHECK(other[b].payload.size() <= relative[b].payload.size());
      saved += relative[b].payload.size() - other[b].payload.size();
    }
  }
  return saved;
}

}  // namespace

bool UsesOther(DeltaProfile profile, std::span<const EncodedBlock> relative,
               std::span<const EncodedBlock> other) {
  DWS_CHECK(other.empty() || other.size() == relative.size());
  if (profile == DeltaProfile::kWan) return Saved(relative, other) > kClassTableCost;
  return std::ranges::any_of(
      other, [](const EncodedBlock& block) { return block.mode != BlockMode::kEmpty; });
}

uint64_t ExchangeOther(std::span<EncodedBlock> relative, std::span<EncodedBlock> other) {
  DWS_CHECK(other.size() == relative.size());
  uint64_t split_bytes = 0;
  for (size_t b = 0; b < other.size(); ++b) {
    if (other[b].mode == BlockMode::kEmpty) continue;
    if (other[b].mode == BlockMode::kClassSplit) split_bytes += other[b].payload.size();
    std::swap(relative[b], other[b]);
  }
  return split_bytes;
}

std::optional<FramedSlice> FrameSlice(RankSlice slice, DeltaProfile profile,
                                      std::span<EncodedBlock> relative,
                                      std::span<EncodedBlock> other,
                                      const std::optional<ClassTable>& classes) {
  const auto seal = [&] {
    return std::make_shared<const SealedSlice>(ObjectWriter::SealSlice(slice, relative, classes));
  };
  FramedSlice framed{.slice = slice, .fast = seal()};
  if (framed.fast->delta.frames.empty()) return std::nullopt;
  if (UsesOther(profile, relative, other)) {
    framed.split_bytes = ExchangeOther(relative, other);
    framed.other = seal();
    ExchangeOther(relative, other);
  }
  return framed;
}

OpenDelta::OpenDelta(WeightVersion version, WeightVersion base, DeltaProfile profile,
                     std::function<void()> on_fetchable)
    : version_(version), base_(base), profile_(profile), on_fetchable_(std::move(on_fetchable)) {}

void OpenDelta::Add(FramedSlice slice) {
  DWS_CHECK(slice.fast != nullptr && stage() == Stage::kOpen);
  bool reached = false;
  {
    MutexLock lock(mutex_);
    bytes_ += slice.fast->bytes.size();
    slices_.push_back(std::move(slice));
    reached = bytes_ >= limits::kEarlyDeltaBytesMin && !fetchable_.exchange(true);
  }
  if (reached) on_fetchable_();
}

std::optional<FramedSlice> OpenDelta::At(size_t index) const {
  MutexLock lock(mutex_);
  return index < slices_.size() ? std::optional(slices_[index]) : std::nullopt;
}

std::vector<FramedSlice> OpenDelta::Slices() const {
  std::vector<FramedSlice> slices;
  {
    MutexLock lock(mutex_);
    slices = slices_;
  }
  std::ranges::sort(slices, {}, &FramedSlice::slice);
  return slices;
}

void OpenDelta::End(Stage stage) {
  std::vector<FramedSlice> let_go;  // outside the lock
  MutexLock lock(mutex_);
  stage_.store(stage);
  let_go.swap(slices_);
  for (const auto& [who, wake] : wakes_) wake();
  wakes_.clear();
}

void OpenDelta::OnEnd(const void* who, std::function<void()> wake) {
  MutexLock lock(mutex_);
  if (stage() == Stage::kOpen) wakes_[who] = std::move(wake);
}

void OpenDelta::Leave(const void* who) {
  MutexLock lock(mutex_);
  wakes_.erase(who);
}

}  // namespace dws
