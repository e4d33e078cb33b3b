// A trainer and its sender in this process, made of the sender's own parts: resident weights in
// shared memory or on a GPU, snapshot, capture, sealing. It does the work of the daemon, without
// network.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/delta_profile.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/publish/retained_version.h"
#include "sender_daemon/trainer/handover.h"
#include "sender_daemon/trainer/listed_source.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// Lifecycle: created for a placement; weights begin as zeros. Threads: one.
class SenderSide {
 public:
  // RESOURCE_EXHAUSTED and others: not enough memory.
  static Result<std::unique_ptr<SenderSide>> Create(const Placement& placement);
  // Like Create, but for weights in this region, which the trainer owns. `lists`, if not empty, has
  // the trainer's lists of changes.
  static Result<std::unique_ptr<SenderSide>> CreateFor(const Placement& placement,
                                                       MappedRegion region, HostRegion lists = {});

  // What the daemon does when a trainer registers, so that no version waits for memory.
  void TakeMemory(ThreadPool& pool) const {
    snapshot().Populate(pool);
    source_->TakeMemory(snapshot());
  }

  // The trainer's own mapping of its weights; empty after CreateFor.
  MutableByteSpan weights() const { return trainer_.mutable_bytes(); }
  // The sender's mapping of the same memory; empty after CreateFor.
  ByteSpan source_bytes() const { return source_bytes_; }
  Snapshot& snapshot() const { return *state_->snapshot; }
  const RankStatePtr& state() const { return state_; }

  // Captures the weights as the next version: everything that Publish does except the RPC. Kept for
  // Seal. `full` and `on_read`: as dws::Capture has them. `listed`: by shard, in the region of
  // CreateFor.
  void Capture(ThreadPool& pool, DeltaProfile profile = DeltaProfile::kFast,
               FullCause full = FullCause::kNone, const dws::Capture::OnRead& on_read = nullptr,
               std::vector<ListedShard> listed = {});
  // The version that was captured last. CHECK: it was not sealed.
  const CapturedVersion& captured() const {
    DWS_CHECK(captured_.has_value());
    return *captured_;
  }
  // A view of the newest version that was captured. Errors: as ViewSnapshot::Create.
  Result<std::unique_ptr<ViewSnapshot>> Follow(const std::string& view, ThreadPool& pool) const;
  // The captured version in the form that is retained and sent.
  RetainedVersionPtr Seal();

 private:
  SenderSide() = default;

  HostRegion trainer_;
  std::unique_ptr<ResidentSource> source_;
  ByteSpan source_bytes_;
  RankStatePtr state_;
  uint64_t version_ = 0;
  std::optional<CapturedVersion> captured_;
};

// The smaller of a version's objects, which a link of profile wan gets.
inline const std::vector<std::byte>& SmallestObject(const RetainedVersion& version) {
  return version.other_object.empty() ? version.object : version.other_object;
}

}  // namespace dws::bench
