// Counts events of dws-sender as they happen; the other metrics come from its status
// (proto/sender_status.proto). docs/metrics.md lists all.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/service/metrics/metrics.h"
#include "common/service/metrics/reason_counters.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/publish/retained_version.h"

namespace dws {

// kFullCopied: full tensors that had to be copied, because the snapshot had moved on.
enum class ServedKind { kDelta, kSquash, kFull, kFullCopied };

// Lifecycle: outlives all parts that report to it. Threads: safe from any.
class SenderMetrics {
 public:
  SenderMetrics(const std::string& job_id, uint32_t trainer_rank);

  Metrics& registry() { return registry_; }
  const Metrics& registry() const { return registry_; }

  // A Publish was answered, with any outcome. `stall` is the time from its arrival to the reply.
  void OnPublishReply(Duration stall);
  // A version is recorded and about to be announced.
  void OnPublished(const RankState& state, const RetainedVersion& version);
  // The views of a captured version were captured, which took this long.
  void OnViewsCaptured(Duration time);
  // A view has left out a version, because other ranks' part of it came too late.
  void OnViewVersionLeftOut() { view_versions_left_out_.Increment(); }
  // A receiver committed a version that was announced to it this long ago.
  void OnAcknowledged(Duration since_announced);
  void OnServed(ServedKind kind, uint64_t bytes);
  void OnNack(uint32_t code);
  // `slices` more slices of the snapshot differ from the published digests.
  void OnVerifyMismatches(uint64_t slices);

 private:
  Metrics registry_;
  Histogram publish_seconds_;
  Histogram capture_seconds_;
  Histogram view_capture_seconds_;
  Histogram seal_seconds_;
  std::array<Histogram, 6> stage_seconds_;  // in the order of CaptureSeconds
  Histogram ack_seconds_;
  Counter published_versions_;
  Counter published_elements_;
  Counter changed_elements_;
  Counter full_bytes_;
  Counter dense_bytes_;
  std::array<Counter, 3> full_versions_;  // by FullCause, from kFirst on
  Counter gpu_compared_blocks_;
  Counter gpu_copied_blocks_;
  Counter listed_blocks_;
  std::array<Counter, kBlockModes> wire_bytes_;  // by block mode; kEmpty: all other bytes
  std::array<Counter, 4> served_bytes_;          // by ServedKind
  ReasonCounters nacks_;
  Counter verify_mismatches_;
  Counter view_versions_left_out_;
};

}  // namespace dws
