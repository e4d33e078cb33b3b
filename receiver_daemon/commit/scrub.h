// The background check for drift: live memory read again and again, a batch at a time, at a steady
// rate. Says what is due and when; reads and decides nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/model/limits.h"
#include "receiver_daemon/commit/verification.h"

namespace dws {

// What an operator sees of it.
struct ScrubProgress {
  uint64_t bytes_per_second_max = 0;  // 0: off
  uint64_t bytes = 0;                 // read so far
  uint64_t passes = 0;                // over all live memory of an engine
  double last_pass_unix_seconds = 0;  // when the last one ended; 0: none yet
};

// Lifecycle: Begin for each engine, Forget with it. Threads: one.
class Scrub {
 public:
  // 0: never anything due.
  explicit Scrub(uint64_t bytes_per_second) : rate_(bytes_per_second) {}

  uint64_t rate() const { return rate_; }
  bool on(const EngineWeightsPtr& weights) const {
    return reading_.has_value() && &reading_->weights() == weights.get();
  }
  // A pass over the memory of `weights`.
  void Begin(EngineWeightsPtr weights) { reading_.emplace(std::move(weights)); }
  void Forget() { reading_.reset(); }

  // How long until the next batch may be read; nullopt: never.
  std::optional<Duration> UntilDue(TimePoint now) const {
    if (rate_ == 0) return std::nullopt;
    return std::max(due_ - now, Duration::zero());
  }
  // What is to be read now; the next batch is due when the rate allows it. Requires that a pass has
  // begun and is not done.
  SliceBatch Next(TimePoint now) {
    SliceBatch batch =
        reading_->Next(std::min(rate_ / kBatchesPerSecond, limits::kVerifyBatchBytes));
    const double seconds = static_cast<double>(batch.bytes) / static_cast<double>(rate_);
    due_ = now + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    return batch;
  }
  bool done() const { return reading_->done(); }

 private:
  static constexpr uint64_t kBatchesPerSecond = 4;

  const uint64_t rate_;
  std::optional<Verification> reading_;
  TimePoint due_{};
};

}  // namespace dws
