// The version that is being captured, which receivers may read before it is published.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "sender_daemon/capture/open_delta.h"

namespace dws {

// Threads: safe from any.
class VersionInFlight {
 public:
  // The full version whose capture is open.
  std::optional<WeightVersion> replacing() const {
    const uint64_t version = replacing_.load();
    return version == 0 ? std::nullopt : std::optional(WeightVersion(version));
  }
  bool captured_last(WeightVersion version) const { return captured_.load() == version.value(); }
  // kCaptured: its capture has ended; newer ones may have been captured since. kNeither: it was not
  // begun, or was given up.
  enum class Stage : uint8_t { kNeither, kReplacing, kCaptured };
  // A capture calls SetCaptured before it ends SetReplacing, so that no thread sees neither in
  // between.
  Stage StageOf(WeightVersion version) const {
    if (replacing_.load() == version.value()) return Stage::kReplacing;
    return captured_.load() >= version.value() ? Stage::kCaptured : Stage::kNeither;
  }
  // By the capture of a full version: while it is open, and when it has ended in any way.
  void SetReplacing(std::optional<WeightVersion> version) {
    replacing_.store(version.has_value() ? version->value() : 0);
  }
  // The version of the snapshot; none: its bytes are of no version.
  void SetCaptured(std::optional<WeightVersion> version) {
    captured_.store(version.has_value() ? version->value() : 0);
  }

  // The delta whose capture began last, which may have ended. Null: there was none yet.
  std::shared_ptr<OpenDelta> open_delta() const {
    MutexLock lock(mutex_);
    return open_delta_;
  }
  void SetOpenDelta(std::shared_ptr<OpenDelta> delta) {
    MutexLock lock(mutex_);
    open_delta_ = std::move(delta);
  }

 private:
  std::atomic<uint64_t> captured_{0};   // 0: none
  std::atomic<uint64_t> replacing_{0};  // 0: none
  mutable Mutex mutex_;
  std::shared_ptr<OpenDelta> open_delta_ GUARDED_BY(mutex_);
};

}  // namespace dws
