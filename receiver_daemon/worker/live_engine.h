// The worker's view of the attached engine: its memory, the version that memory is known to have,
// and the lease by which the engine is paused and resumed.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/thread_pool.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/engine/lease_control.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/weights/served_weights.h"
#include "receiver_daemon/worker/worker_board.h"

namespace dws {

// Lifecycle: lives as long as the worker. Threads: the worker's.
class LiveEngine {
 public:
  struct Parts {
    Subscription& subscription;
    EngineRegistry& registry;
    Preparer& preparer;
    ThreadPool& pool;
    const Clock& clock;
    WorkerBoard& board;
    Liveness* liveness;     // waits while engine ranks are waited for; may be null
    ServedWeights* served;  // gets proved memory, for other receivers; null: they read none
    // Called before memory is released: every part that holds something of it drops that.
    std::function<void()> on_forget;
    // Called when a version number turned out to be published with other weights.
    std::function<void()> on_renumbered;
  };
  struct Options {
    Duration pause_timeout;
    CudaOptions cuda;
    // Returns whether an engine whose memory is proved may run; in a commit group only after it is
    // released.
    bool runs_when_proved = true;
  };
  LiveEngine(Parts parts, const Options& options) : parts_(std::move(parts)), options_(options) {}

  // Looks at the attached engine. A new engine is mapped, and its memory is not known. The same
  // engine with other cuts is mapped again; its version stays known if the senders confirm it by
  // the digests of the new slices. Returns false if no engine is attached; then nothing about the
  // earlier one is kept.
  bool Attach();
  // Reads all memory, unless it is known. False: it cannot be read, and its registration has ended.
  // Requires that an engine is attached.
  bool Read();
  // How often all memory was read so far.
  uint64_t readings() const { return readings_; }
  // Its memory cannot be read: ends its registration.
  void Lose(const Status& why);
  void Forget();

  const EngineWeightsPtr& weights() const { return weights_; }  // null: none
  const LiveState& live() const { return live_; }
  // Since when all of its memory was read; requires that it is known.
  TimePoint known_since() const { return known_since_; }
  LiveState& mutable_live() { return live_; }
  // Returns whether `weights` is still the attached memory.
  bool IsCurrent() const;
  // Requires that an engine is attached.
  LeaseControl Control() const;
  Status Pause() const { return Control().Pause(options_.pause_timeout); }
  // Returns whether all its ranks would stop for a commit of `target` now. Requires that an engine
  // is attached.
  bool MayCommit(const VersionAt& target) const;
  // Returns whether the engine itself says when it lets versions be committed. Requires that an
  // engine is attached.
  bool Asks() const;
  // Returns whether its memory may be written before a commit: it has no version, and no rank
  // executes or will execute before the engine is released. Requires that an engine is attached.
  bool MayWriteNow() const;
  // Returns whether it may compute now: it has a version, and neither a commit group nor drift
  // keeps it paused.
  bool runs() const {
    return live_.at.has_value() && !paused_for_drift_ && (options_.runs_when_proved || released_);
  }

  // Returns "the engine is paused", or "the engine runs with weights of its own", for an engine
  // whose memory is not proved to be a version. Requires that an engine is attached.
  std::string Unproved() const;

  // Shows `live` to senders and operators; other receivers may read it while it is proved.
  void Show() const;
  // It was resumed, and not paused since. An engine that runs with weights of its own was not.
  bool released() const { return released_; }

  // Checks for a number of one stream that was used twice: memory has a version with that number,
  // but another version is published under it now. The published one counts, so all differences are
  // drift. Errors as Preparer::Describe.
  Status CheckNumber(const SyncTarget& target);
  void CountDrift(uint64_t MismatchCounts::*source, uint64_t slices = 1);
  uint64_t drifts() const { return drifts_; }  // how often drift was found
  std::string DriftReason() const;             // requires live().drifted
  // Pauses the engine for drift that is not repaired, because of `cause`.
  void PauseForDrift(const Status& cause);
  bool paused_for_drift() const { return paused_for_drift_; }
  // Call OnPaused when a commit has left the engine paused, OnResumed when it runs again. Both
  // update the status.
  void OnPaused();
  void OnResumed();

 private:
  // Returns whether the engine may be mapped by `layouts` now.
  bool MayFollow(const LayoutSet& layouts) const;
  // Maps the attached ranks by `layouts`, or ends them.
  void Follow(const LayoutSetPtr& layouts);
  bool AllRun() const;  // according to their leases
  enum class Proof : uint8_t { kSame, kDiffers, kUnknown };
  // The tensors were cut differently, and memory was read again by the present cuts. Asks the
  // senders for the digests of `before`, and returns whether memory is still that version. Requires
  // that memory is known.
  Proof Prove(const VersionAt& before);
  // If Prove says that memory is still `before`, keeps that version, whose state token the present
  // cuts change. The engine is paused to get the new token; one that asks for its commits gets it
  // with its next version.
  void Restate(const VersionAt& before);

  const Parts parts_;
  const Options options_;
  std::optional<AttachedEngine> engine_;
  EngineWeightsPtr weights_;
  LiveState live_;
  uint64_t readings_ = 0;
  TimePoint known_since_;
  uint64_t drifts_ = 0;
  bool released_ = false;
  bool paused_for_drift_ = false;
  std::optional<VersionAt> before_;  // by the cuts before, until memory is read by the present ones
  CutWishes needed_;                 // what attached ranks lack
  std::string drift_told_;           // what PauseForDrift logged last of drift that goes on
};

}  // namespace dws
