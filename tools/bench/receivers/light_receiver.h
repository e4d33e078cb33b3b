// A receiver without an engine: it speaks the whole protocol with its sender, through the classes
// of dws-receiver, and checks all that can be checked without weights. So one process can have a
// thousand of them, to load a sender as a thousand hosts would.
//
// A version that it acknowledges as COMMITTED is proved so far: every frame has the checksum of the
// manifest, the manifest is of the announced stream and version and of the base that this receiver
// has, the digests of its slices lead from the state of the base to the announced state token. It
// does not prove that the frames decode to weights with these digests. At first contact, and after
// a full version, it takes the sender's description for weights that it would have fetched in full.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/model/delta_profile.h"
#include "common/service/peers/change_signal.h"
#include "common/sources/sender/grpc_source.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/sources/inline_source.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws::bench {

// Lifecycle: Start, Tick every limits::kTick, Stop. Threads: safe from any; Tick from one at a
// time. It has one thread of its own, which waits or blocks in a transfer.
class LightReceiver {
 public:
  struct Options {
    std::string sender;  // an address
    std::string job_id;
    std::string receiver_id;
    ProfileChoice profile = ProfileChoice::kAuto;
  };
  struct View {
    std::optional<WeightVersion> committed;
    uint64_t deltas = 0;     // versions reached by a delta
    uint64_t described = 0;  // versions reached by a description
    uint64_t fetched_bytes = 0;
    uint64_t failures = 0;
    std::string trouble;                                      // the last failure
    std::deque<std::pair<WeightVersion, TimePoint>> commits;  // the last ones
  };

  // `clock` must outlive it.
  LightReceiver(const Options& options, const Clock& clock);
  ~LightReceiver() { Stop(); }

  void Start();
  void Tick() { links_.Tick(); }
  // Asks the thread to end, so that many receivers can end at once before Stop waits for each.
  void BeginStop();
  void Stop();
  View view() const;

 private:
  struct Live {
    VersionAt at;
    std::vector<PublishedState> ranks;      // by trainer rank
    std::vector<Digest> layout_signatures;  // that number their slices
  };

  void Run();
  Status Step();
  Status Reach(const SyncTarget& target);
  Result<PublishedState> Prepare(const Piece& piece, uint64_t& fetched_bytes);
  Result<PublishedState> ByDelta(const Piece& piece, WeightVersion base, uint64_t& fetched_bytes);
  Result<PublishedState> ByDescription(const Piece& piece);
  // The state of the rank at the base of a delta; null: there is none in this layout.
  const PublishedState* StateOf(const Piece& piece) const;

  const Clock& clock_;
  ChangeSignal changed_;
  Subscription subscription_;
  SyncLinks links_;
  InlineSource inline_;
  GrpcSource grpc_;
  std::optional<Live> live_;  // of the thread

  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  View view_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws::bench
