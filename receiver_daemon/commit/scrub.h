// The background check for drift: it reads live memory again and again, a batch at a time, and
// tries to finish each pass in the configured time as far as the cap on its speed allows. This
// class says what to read next and when; it reads and decides nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/model/limits.h"
#include "receiver_daemon/commit/verification.h"

namespace dws {

// How fast live memory is read again.
struct ScrubOptions {
  uint64_t bytes_per_second_max = 0;  // 0: no scrub
  Duration pass = {};                 // the target of one pass; zero: as fast as the cap allows
};

// The progress of the scrub as an operator sees it.
struct ScrubProgress {
  ScrubOptions asked;
  uint64_t bytes = 0;                 // read so far
  uint64_t passes = 0;                // over all live memory of an engine
  double last_pass_unix_seconds = 0;  // when the last one ended; 0: none yet
  Duration pass_expected = {};        // of this engine's memory under the cap; zero: not known
  std::optional<TimePoint> complete_since;  // see Scrub
};

// Lifecycle: Begin for each pass, Forget with the engine. Threads: one.
class Scrub {
 public:
  explicit Scrub(ScrubOptions options) : options_(options) {}

  const ScrubOptions& options() const { return options_; }
  bool on(const EngineWeightsPtr& weights) const {
    return reading_.has_value() && &reading_->weights() == weights.get();
  }
  // A pass over the memory of `weights`.
  void Begin(EngineWeightsPtr weights, TimePoint now) {
    reading_.emplace(std::move(weights));
    begun_ = now;
    if (!complete_since_.has_value()) complete_since_ = now;
    const double cap = static_cast<double>(options_.bytes_per_second_max);
    const double total = static_cast<double>(reading_->total_bytes());
    const double target = ToSeconds(options_.pass);
    rate_ = target > 0 ? std::clamp(total / target, 1.0, cap) : cap;
  }
  // The pass that has begun is done.
  void EndPass(TimePoint now) {
    reading_.reset();
    complete_since_ = now;
  }
  void Forget() {
    reading_.reset();
    complete_since_.reset();
  }

  // How long until the next batch may be read; nullopt: never.
  std::optional<Duration> UntilDue(TimePoint now) const {
    if (options_.bytes_per_second_max == 0) return std::nullopt;
    return std::max(due_ - now, Duration::zero());
  }
  // Returns the slices to read now. The next batch is due at the time that the pass's pace gives,
  // and not before the cap allows it, so that a late pass catches up. Requires that a pass has
  // begun and is not done.
  SliceBatch Next(TimePoint now) {
    SliceBatch batch = reading_->Next(
        std::min(static_cast<uint64_t>(rate_ / kBatchesPerSecond), limits::kVerifyBatchBytes));
    const double cap = static_cast<double>(options_.bytes_per_second_max);
    due_ = std::max(now + After(static_cast<double>(batch.bytes) / cap),
                    begun_ + After(static_cast<double>(reading_->done_bytes()) / rate_));
    return batch;
  }
  bool done() const { return reading_->done(); }

  // How long a pass over the memory of the last Begin takes at its pace.
  Duration pass_expected() const {
    return After(static_cast<double>(reading_->total_bytes()) / rate_);
  }
  // The cap keeps this memory from being read within the target.
  bool slow() const {
    return options_.pass > Duration::zero() && pass_expected() > options_.pass + kRounding;
  }
  // The end of the last complete pass over this engine's memory, or when the first was begun.
  std::optional<TimePoint> complete_since() const { return complete_since_; }

 private:
  static constexpr double kBatchesPerSecond = 4;
  static constexpr double kSecondsMax = 1e9;  // fits a Duration
  static constexpr std::chrono::milliseconds kRounding{1};

  static Duration After(double seconds) {
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(seconds, kSecondsMax)));
  }

  const ScrubOptions options_;
  std::optional<Verification> reading_;
  double rate_ = 1;  // bytes a second, of the pass
  TimePoint begun_{};
  TimePoint due_{};
  std::optional<TimePoint> complete_since_;
};

}  // namespace dws
