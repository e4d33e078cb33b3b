// The trainer's side of the sender: one registration at a time, and the versions it hands over.
//
// A registration goes through three steps: Register checks it and gives out a token; the handle
// socket brings the memory; Activate makes it the one that counts, which fences the one before.
// What survives a registration (snapshot and log) is the RankState: kept when stream and layout are
// the same, made anew otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/base/unique_fd.h"
#include "common/base/wall_clock.h"
#include "common/ledger/version_ledger.h"
#include "common/memory/cuda/region_import.h"
#include "common/service/sockets/handle_socket.h"
#include "proto/trainer.pb.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/trainer/drain_switch.h"
#include "sender_daemon/trainer/registration.h"

namespace dws {

// A ledger that two threads use: registrations open streams, the pipeline records versions.
class SharedSenderLedger {
 public:
  explicit SharedSenderLedger(std::unique_ptr<SenderLedger> ledger) : ledger_(std::move(ledger)) {}
  Status Append(const SenderRecord& record) {
    MutexLock lock(mutex_);
    return ledger_->Append(record);
  }
  SenderLedgerState state() const {
    MutexLock lock(mutex_);
    return ledger_->state();
  }

 private:
  mutable Mutex mutex_;
  const std::unique_ptr<SenderLedger> ledger_ GUARDED_BY(mutex_);
};

// Lifecycle: Stop first, then destroy. Threads: Register ... OnHangup run on `executor` (one
// thread), where the service posts them; trainer_present from any.
class TrainerSession {
 public:
  struct Options {
    std::string job_id;
    TrainerRank trainer_rank;
    DeltaLogLimits log_limits;
    ProfileChoice profile = ProfileChoice::kAuto;
    // New epochs start here: above those of any earlier process, even if its ledger was lost.
    RankEpoch epoch_floor = RankEpoch(1);
  };
  struct Parts {  // not owned
    const Clock* clock = nullptr;
    Executor* executor = nullptr;
    ThreadPool* pool = nullptr;
    HandleSocket* handles = nullptr;
    SharedSenderLedger* ledger = nullptr;
    PublishPipeline* pipeline = nullptr;
    const DrainSwitch* drain = nullptr;
    const WallClock* wall_clock = &kSystemWallClock;
    cuda::CudaDevices* devices = nullptr;        // none: memory of the host only
    std::function<void(RankStatePtr)> on_state;  // a registration is live
    std::function<void()> on_gone;               // the trainer hung up
  };
  TrainerSession(Options options, Parts parts);

  // False once the trainer gave a call up: it may be overwriting what the call reads, so nothing of
  // the version is kept. CANCELLED. The same when the trainer has aborted the attempt or shut its
  // connection on the handle socket: unlike a cancelled call, the kernel tells that at once, so a
  // trainer that has shut it may overwrite the weights, whatever this process is doing.
  using StillWanted = std::function<bool()>;

  // The errors of all calls: INVALID_ARGUMENT fix the request; FAILED_PRECONDITION this trainer
  // must stop (fenced, an old stream, a version that does not increase); RESOURCE_EXHAUSTED try
  // later; UNAVAILABLE: the operator drains the sender, Register, Begin and Publish are refused.
  // Publish besides: INTERNAL: a GPU failed, nothing of the version is kept.
  //
  // Only the user of `peer` may hand over the memory; nullopt: whoever has the token.
  // A new stream whose incarnation is ahead of the clock is refused (clock_bound.h).
  Result<v1::RegisterReply> Register(const v1::RegisterRequest& request,
                                     std::optional<UnixPeer> peer = std::nullopt);

  Status Begin(const v1::BeginRequest& request);
  Status Put(const v1::PutRequest& request, const StillWanted& still_wanted);
  Status Abort(const v1::AbortRequest& request);
  Result<v1::PublishReply> Publish(const v1::PublishRequest& request,
                                   const StillWanted& still_wanted);
  // Whether Wait makes sense. ABORTED: this sender does not know the version and will not.
  Status CheckWait(const v1::WaitRequest& request);

  // An operator's order: the ledger, and this process, know nothing of the recorded stream any
  // more but that it is not registered again (SenderLedgerState::CheckOpen). FAILED_PRECONDITION:
  // it is another one, or its trainer is registered.
  Status ForgetStream(const StreamId& stream);

  bool trainer_present() const { return present_.load(); }
  // A Publish is under way that may have been admitted before a drain.
  bool publishing() const { return publishing_.load(); }

 private:
  // What the handle socket brought.
  struct HandedOver {
    // The last to go: its end tells the trainer that nobody here has the memory any more.
    UniqueFd connection;
    std::vector<MappedRegion> regions;
  };
  struct Live {
    UniqueFd connection;  // as of HandedOver
    uint64_t session = 0;
    Registration registration;
    HandleRegistrationId handle;
    std::unique_ptr<ResidentSource> resident;
    HostRegion ring;
    std::unique_ptr<Capture> open_version;  // ring handover, between Begin and Publish or Abort
    uint64_t open_attempt = 0;              // of the open version
    uint64_t attempts_given_up = 0;         // all up to this one
    Duration capture_time = {};             // of the open version, so far
  };

  // Whether its stream and layout may follow what was there before.
  Status CheckAdmission(const Registration& registration) const;
  Status Activate(uint64_t session, Registration registration, HandleRegistrationId handle,
                  HandedOver memory);
  // What the handle socket calls, on its thread.
  Status OnDescriptors(uint64_t session, const Registration& registration,
                       HandleRegistrationId handle, std::vector<UniqueFd> descriptors,
                       UniqueFd connection);
  void OnHangup(uint64_t session);
  Result<RankStatePtr> OpenState(const Registration& registration);
  Result<Live*> Find(uint64_t session);
  // Whether the next version's blocks are class-split besides.
  DeltaProfile NextProfile() const;
  Status AdmitVersion(WeightVersion version) const;
  // Whether the trainer may have begun to overwrite what `attempt` reads.
  static bool GivenUp(const Live& live, uint64_t attempt);
  std::optional<WeightVersion> LastVersion() const;

  const Options options_;
  const Parts parts_;
  uint64_t last_session_;
  RankStatePtr state_;
  std::optional<Live> live_;  // after state_: an open version refers to its snapshot
  std::atomic<bool> present_{false};
  std::atomic<bool> publishing_{false};
};

}  // namespace dws
