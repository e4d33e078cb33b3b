// The sender's side of broadcasts as a pure class: who may take part, when an epoch (one
// communicator with a fixed membership) is formed, used and ended, and when everybody falls back to
// fetching. No I/O, no clock, no threads: sender_daemon/serve/broadcaster.h drives it and guards
// it.
//
// Rules:
//   1. An epoch is offered to every receiver that can take part and has left the epoch it was
//      offered before. A receiver that does not answer is never offered another epoch on its
//      connection: it costs one epoch a deadline, not every epoch.
//   2. An epoch is ready once all of its members and the sender have joined.
//   3. An epoch ends as a whole: if a member leaves or is lost, if the sender's own part fails, or
//      if joining takes too long. It also ends to let in receivers that came meanwhile, but only
//      between broadcasts, and not often.
//   4. The next epoch is formed when all have left, or when the grace period for that is over.
//      After a failure there is also a back-off, which doubles until a broadcast has succeeded.
//   5. A member that says it is unable to take part is left out for a while.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/strong_type.h"
#include "common/model/limits.h"
#include "common/sync_state/announcer_state.h"

namespace dws {

// Counts the epochs of one sender process, from 1.
using BroadcastEpoch = StrongType<struct BroadcastEpochTag, uint64_t>;

// Decides when epochs of broadcasts are formed and ended. Pure: no I/O, no clock, no threads.
class BroadcastState {
 public:
  // Why a member left: it was asked to; the others did not come, or stalled; itself was at fault.
  enum class Departure { kAsked, kStalled, kUnable };

  // To be carried out by the caller, each once.
  struct Form {
    BroadcastEpoch epoch;
    std::vector<ConnectionId> members;  // ranks 1, 2, ...
  };
  struct End {
    BroadcastEpoch epoch;
    std::vector<ConnectionId> members;  // those still connected
    bool failed = false;
  };
  using Step = std::variant<std::monostate, Form, End>;

  // `join_timeout`: from Form until all have joined.
  explicit BroadcastState(Duration join_timeout) : join_timeout_(join_timeout) {}

  // A connection whose receiver can take part.
  void OnCapable(ConnectionId connection);
  void OnDisconnect(ConnectionId connection);
  void OnJoined(ConnectionId connection, BroadcastEpoch epoch);
  void OnLeft(ConnectionId connection, BroadcastEpoch epoch, Departure why, TimePoint now);
  // The sender's own part: it has joined; it failed, in joining or in a broadcast.
  void OnFormed(BroadcastEpoch epoch);
  void OnBroken(BroadcastEpoch epoch);
  // A broadcast has ended well.
  void OnBroadcast(TimePoint now);

  // Returns the next step. Must not be called while a broadcast is in progress, unless broken().
  Step Next(TimePoint now);

  bool ready() const { return phase_ == Phase::kReady && !broken_; }
  // The epoch under way is lost: its End is due.
  bool broken() const { return broken_; }
  BroadcastEpoch epoch() const { return epoch_; }  // the last epoch; 0: there was none
  // Members of the last epoch that are still connected.
  std::vector<ConnectionId> members() const;
  size_t capable() const { return receivers_.size(); }

 private:
  enum class Phase { kIdle, kForming, kReady, kEnding };
  struct Receiver {
    std::optional<BroadcastEpoch> owes;  // offered, and not yet left
    bool joined = false;                 // the epoch that it was offered
    TimePoint excluded_until = {};
  };

  std::vector<ConnectionId> Eligible(TimePoint now) const;
  Step BeginEnd(TimePoint now, bool failed);
  bool AllJoined() const;

  const Duration join_timeout_;
  std::map<ConnectionId, Receiver> receivers_;
  Phase phase_ = Phase::kIdle;
  BroadcastEpoch epoch_;
  bool own_joined_ = false;
  bool broken_ = false;
  uint32_t failures_ = 0;  // since the last broadcast that succeeded
  TimePoint began_ = {};   // the epoch, or its end
  TimePoint last_broadcast_ = {};
  TimePoint not_before_ = {};  // the next epoch
};

}  // namespace dws
