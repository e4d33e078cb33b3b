// The sender's side of the sync protocol as a pure class: which receivers there are, which version
// each was offered, has staged and has committed, and whether a Wait is satisfied. No I/O, no
// clock, no threads: sender_daemon/serve/receiver_hub.h drives it and guards it.
//
// Rules (protocol.md §2): every message down carries a fresh nonce of its connection; STAGED and
// NACK with another nonce than the last announcement's are ignored; COMMITTED is cumulative,
// whatever its nonce; a new connection clears the nonce and keeps the versions. A report of a
// version that this process has not published yet counts until it is published, then only if the
// state tokens are the same. Policy all waits for the receivers that are present, and after a
// restart also for those that were present before it. A receiver whose last report was a refusal
// counts as present between its connections, because it ends each of them after
// limits::kRefusedStreamMax. Policy all leaves out a receiver that has committed nothing for the
// time of the policy, while others did.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/strong_type.h"
#include "common/model/digest/digest.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// One Sync stream of one receiver; never reused.
using ConnectionId = StrongType<struct ConnectionIdTag, uint64_t>;
using Nonce = StrongType<struct NonceTag, uint64_t>;

// The receivers that must have committed before a wait ends.
struct WaitCondition {
  enum class Policy : uint8_t { kAll, kQuorum, kAny };
  Policy policy = Policy::kAll;
  uint32_t quorum = 1;
};

// How far the receivers are with one version. Ids ascending; each present receiver, and each that
// refuses and was present less than limits::kRefusedReturnWait ago, is in exactly one of the first
// two or, left out, in the third; the others are not connected.
struct WaitTally {
  std::vector<std::string> committed;  // at or above the version
  std::vector<std::string> missing;    // the others
  std::vector<std::string> left_out;   // the others that policy all does not wait for
  std::vector<std::string> awaited;    // not back since the restart: policy all waits for them
  std::vector<std::string> absent;     // the others that were connected to this process
  size_t present() const { return committed.size() + missing.size() + left_out.size(); }
};

// A receiver's report that it has committed a version. Figures that no commit can have count as 0.
struct AcknowledgedCommit {
  WeightVersion version;
  Digest state_token;  // of the version
  double pause_seconds = 0;
  double stage_seconds = 0;
  uint64_t fetched_bytes = 0;

  // Returns this report with 0 in place of figures that no commit can have.
  AcknowledgedCommit possible() const;
};

// What a sender knows of its receivers. Pure: no I/O, no clock, no threads.
class AnnouncerState {
 public:
  struct Receiver {
    std::optional<ConnectionId> connection;  // present when set
    // The receiver was present when the process before this one ended, and has not connected since:
    // policy all waits for it.
    bool awaited = false;
    std::optional<TimePoint> absent_since;  // when its last connection to this process ended
    Nonce last_announced;                   // nonce of the last announcement on this connection
    std::optional<WeightVersion> staged;
    std::optional<WeightVersion> committed;
    Digest committed_token;  // as reported with `committed`
    AcknowledgedCommit last_commit;
    // The latest of: another receiver committed what this one has not; this one became known, came
    // back after it was awaited, or committed last. Unset: no other receiver has more. Connecting
    // again does not change it, or a receiver that comes and goes would be waited for without end.
    std::optional<TimePoint> behind_since;
    std::string last_error;
    uint64_t nacks = 0;  // of this stream or an earlier one, late ones included
    // When versions were first reported committed, newest last, bounded.
    std::vector<std::pair<WeightVersion, TimePoint>> commit_times;
  };

  // `laggard_after`: how long a receiver may be behind before policy all leaves it out; zero: it is
  // never left out.
  explicit AnnouncerState(Duration laggard_after) : laggard_after_(laggard_after) {}
  AnnouncerState() = default;  // zero

  // A new stream of the trainer: commits of the old one no longer count.
  void StartStream(const StreamId& stream);
  // The stream was forgotten. Does what StopStream does, and no report counts until a stream
  // starts, which may be the same one.
  void ForgetStream();
  const std::optional<StreamId>& stream() const { return stream_; }

  // A receiver that the process before this one knew; ignored past limits::kReceiversMax.
  void Remember(const std::string& receiver_id, bool awaited);
  // The receivers that are still awaited: from now on they count as gone.
  std::vector<std::string> StopAwaiting();
  // NOT_FOUND: it is not known. FAILED_PRECONDITION: it is present.
  Status Forget(const std::string& receiver_id);

  // The receiver that is forgotten when `receiver_id` connects: past limits::kReceiversMax an
  // absent one, or an awaited one if there is no other.
  std::optional<std::string> GivesWay(const std::string& receiver_id) const;
  // RESOURCE_EXHAUSTED past limits::kReceiversMax. When the receiver already had a connection, that
  // one is returned: it is fenced and must be closed.
  Result<std::optional<ConnectionId>> Connect(const std::string& receiver_id,
                                              ConnectionId connection, TimePoint now = {});
  // Ignored for a connection that was fenced.
  void Disconnect(ConnectionId connection, TimePoint now = {});

  // The nonce for the next message down on this connection; an announcement is remembered.
  Nonce NextNonce(ConnectionId connection, bool announcement);

  // True when the report was counted.
  bool OnStaged(ConnectionId connection, Nonce nonce, const StreamId& stream,
                WeightVersion version);
  bool OnCommitted(ConnectionId connection, const StreamId& stream,
                   const AcknowledgedCommit& report, TimePoint now);
  bool OnNack(ConnectionId connection, Nonce nonce, const StreamId& stream, std::string_view error);

  // `version` was published, as the newest: no receiver can have a higher one, nor that number with
  // other weights. Returns the receivers that had reported so; their reports no longer count.
  std::vector<std::string> OnPublished(WeightVersion version, std::span<const Digest> tokens);

  WaitTally Tally(WeightVersion version, TimePoint now) const;
  static bool Met(const WaitTally& tally, const WaitCondition& condition);
  // Like Met of the tally, but names nobody: it is asked after every acknowledgement, so with a
  // thousand receivers a thousand times for each version.
  bool Met(WeightVersion version, const WaitCondition& condition, TimePoint now) const;
  // Returns whether policy all does not wait for it.
  bool LeftOut(const Receiver& receiver, TimePoint now) const;
  // When the last of `receivers` first reported `version` or above.
  std::optional<TimePoint> CommitTime(const std::vector<std::string>& receivers,
                                      WeightVersion version) const;

  const std::map<std::string, Receiver>& receivers() const { return receivers_; }

 private:
  struct Connection {
    std::string receiver_id;
    uint64_t nonce = 0;
  };
  Receiver* Find(ConnectionId connection, const StreamId& stream);
  void Commit(Receiver& receiver, const AcknowledgedCommit& report, TimePoint now);
  void ClearVersions();

  Duration laggard_after_ = Duration::zero();
  std::optional<StreamId> stream_;
  std::map<std::string, Receiver> receivers_;
  // The highest version that a receiver has committed. Receivers below it have a behind_since,
  // unless `unmarked_`: so a commit that is not the first of its version is only about its
  // receiver.
  std::optional<WeightVersion> highest_;
  bool unmarked_ = false;
  std::map<ConnectionId, Connection> connections_;
};

}  // namespace dws
