// The trainer's side of the sender: one registration at a time, and the versions it hands over.
//
// A registration takes three steps: Register checks it and returns a token; the handle socket
// receives the memory; Activate makes it the live one, which fences the previous one. Snapshot and
// log outlive a registration as the RankState: it is kept if stream and layout are the same, and
// made new otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/base/unique_fd.h"
#include "common/base/wall_clock.h"
#include "common/memory/cuda/ipc/region_import.h"
#include "common/model/refinement.h"
#include "common/service/sockets/handle_socket.h"
#include "proto/trainer.pb.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/trainer/drain_switch.h"
#include "sender_daemon/trainer/registration.h"
#include "sender_daemon/trainer/shared_ledger.h"
#include "sender_daemon/views/followed_views.h"

namespace dws {

class CutsFile;

// Lifecycle: Stop the executor first, then destroy. Threads: Register ... OnHangup run on
// `executor` (one thread), where the service posts them; trainer_present from any.
class TrainerSession {
 public:
  struct Options {
    std::string job_id;
    TrainerRank trainer_rank;
    DeltaLogLimits log_limits;
    ProfileChoice profile = ProfileChoice::kAuto;
    // True if the directory's versions would become full together with the receivers' versions.
    bool feeds_directory = false;
    bool huge_pages = false;  // for snapshots, as SnapshotMemory
    // Lower bound for new epochs: above those of any earlier process, even if its ledger was lost.
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
    CutsFile* cuts = nullptr;  // null: a restart forgets the cuts
    const WallClock* wall_clock = &kSystemWallClock;
    cuda::CudaDevices* devices = nullptr;        // null: host memory only
    std::function<void(RankStatePtr)> on_state;  // a registration is live
    std::function<void()> on_gone;               // there is no trainer now
    // The version that is being captured may be fetched now, or was given up. Also from a thread of
    // `pool`.
    std::function<void()> on_replacing = [] {};
    // Returns whether anyone would fetch a delta before it is published.
    std::function<bool()> fetches_early = [] { return true; };
    std::function<void(RankStatePtr)> on_refined;  // the same weights, in a finer layout
    FollowedViews* views = nullptr;                // null: there are none
  };
  TrainerSession(Options options, Parts parts);

  // Returns false after the trainer gave a call up: the trainer may be overwriting the weights that
  // the call reads, so the call keeps nothing of the version and returns CANCELLED. The same
  // happens when the trainer has aborted the attempt or shut its connection on the handle socket.
  // The kernel reports a shut connection at once, unlike gRPC a cancelled call, so a trainer that
  // has shut it may overwrite the weights, whatever this process is doing.
  using StillWanted = std::function<bool()>;

  // Errors of all calls: INVALID_ARGUMENT: fix the request. FAILED_PRECONDITION: this trainer must
  // stop (fenced, an old stream, a version that does not increase). RESOURCE_EXHAUSTED: try later.
  // UNAVAILABLE: the operator drains the sender; Register, Begin and Publish are refused. Publish
  // also returns INTERNAL: a GPU failed, nothing of the version is kept.
  //
  // Only the user of `peer` may hand over the memory; nullopt: anybody who has the token may. A new
  // stream whose incarnation is ahead of the clock is refused (clock_bound.h).
  Result<v1::RegisterReply> Register(const v1::RegisterRequest& request,
                                     std::optional<UnixPeer> peer = std::nullopt);

  // A reply with a layout means that nothing has begun, because the caller does not number slices
  // by that layout.
  Result<v1::BeginReply> Begin(const v1::BeginRequest& request);
  Status Put(const v1::PutRequest& request, const StillWanted& still_wanted);
  Status Abort(const v1::AbortRequest& request);
  // `answer`, if not null, gets the reply, the same that is returned, as soon as the weights have
  // been read, if they are encoded later: on GPUs. After it neither `request` nor `still_wanted` is
  // used.
  using Answer = std::function<void(const v1::PublishReply& reply)>;
  Result<v1::PublishReply> Publish(const v1::PublishRequest& request,
                                   const StillWanted& still_wanted, const Answer& answer = nullptr);
  // Checks that Wait can succeed. ABORTED: this sender does not know the version and never will.
  Status CheckWait(const v1::WaitRequest& request);

  // Checks that Refine could carry the request out now. INVALID_ARGUMENT: it never could: the finer
  // layout is past a limit, or the trainer's memory cannot be read with it. Other errors: not now.
  Status CheckRefine(const StreamId& stream, const CutWishes& wishes) const;
  // Engines need more cuts: the layout becomes finer, with a higher rank epoch, as soon as no
  // version is open. The newest version's weights stay; older ones are no longer retained. OK also
  // if no cuts are missing, or `stream` is not the current one. Errors as CheckRefine. A request
  // that failed is not tried again at once.
  Status Refine(const StreamId& stream, const CutWishes& wishes);

  // An operator's order: ledger and process forget the recorded stream; it cannot be registered
  // again (SenderLedgerState::CheckOpen). FAILED_PRECONDITION: another one, or its trainer is here.
  Status ForgetStream(const StreamId& stream);

  bool trainer_present() const { return present_.load(); }
  // Returns whether a Publish is in progress that may have been admitted before a drain.
  bool publishing() const { return publishing_.load(); }

 private:
  // What was received on the handle socket.
  struct HandedOver {
    // Destroyed last: its end tells the trainer that no part of the sender uses the memory.
    UniqueFd connection;
    std::vector<MappedRegion> regions;
  };
  struct Live {
    UniqueFd connection;  // as in HandedOver
    uint64_t session = 0;
    Registration registration;
    HandleRegistrationId handle;
    std::unique_ptr<ResidentSource> resident;
    HostRegion ring;
    std::unique_ptr<Capture> open_version;  // ring handover, between Begin and Publish or Abort
    uint64_t open_attempt = 0;              // of the open version
    uint64_t attempts_given_up = 0;         // all attempts up to this one
    Duration capture_time = {};             // of the open version, so far

    // Takes the memory that the next capture needs: seconds, for which this trainer's answer on the
    // handle socket does not wait. A trainer that takes its place meanwhile waits for them.
    void TakeMemory(Snapshot& snapshot, ThreadPool& pool) const {
      if (!snapshot.version().has_value()) snapshot.Populate(pool);  // the one before is gone
      if (resident == nullptr) return;
      resident->TakeMemory(snapshot, registration.lists.has_value());
    }
  };

  // Returns whether the current state has this registration's stream and layout.
  bool Continues(const Registration& registration) const;
  // Checks that its stream and layout may follow the previous ones.
  Status CheckAdmission(const Registration& registration) const;
  Status Activate(uint64_t session, Registration registration, HandleRegistrationId handle,
                  HandedOver memory);
  // Called by the handle socket, on its thread, which waits for Activate alone: at most
  // limits::kRpcDeadline.
  Status OnDescriptors(uint64_t session, const Registration& registration,
                       HandleRegistrationId handle, std::vector<UniqueFd> descriptors,
                       UniqueFd connection);
  void OnHangup(uint64_t session);
  // `layout`: the registered one, cut as before.
  Result<RankStatePtr> OpenState(const Registration& registration, const RankLayout& layout);
  Status RefineNow(const CutWishes& lacking);
  // Refines by what was asked for while a version was open, after the calls that wait already.
  void RefineLater();
  Result<Live*> Find(uint64_t session);
  // Returns the function that the capture of a delta calls when receivers may fetch it; null: none
  // would.
  std::function<void()> WhenFetchable() const {
    return parts_.fetches_early() ? parts_.on_replacing : nullptr;
  }
  // Begins to capture `version`; `full`: the trainer wants it so.
  void OpenVersion(Live& live, WeightVersion version, bool full);
  void GiveUpVersion(Live& live);
  v1::PublishReply ReplyOf(uint64_t changed, bool full, TimePoint accepted_at) const;
  Status AdmitVersion(WeightVersion version) const;
  // Returns whether the trainer may already overwrite the weights that `attempt` reads.
  static bool GivenUp(const Live& live, uint64_t attempt);
  std::optional<WeightVersion> LastVersion() const;

  const Options options_;
  const Parts parts_;
  uint64_t last_session_;
  const DeviceShardsOptions on_devices_;  // shares what registrations have left on loan
  RankStatePtr state_;
  std::optional<Live> live_;   // after state_: an open version refers to its snapshot
  CutWishes wishes_;           // of the current stream, asked for while a version was open
  TimePoint refine_again_at_;  // after a failure
  std::atomic<bool> present_{false};
  std::atomic<bool> publishing_{false};
};

}  // namespace dws
