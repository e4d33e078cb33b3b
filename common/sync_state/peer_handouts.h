// Which receiver takes a version from the senders, and from which receiver the others take it, as a
// pure class: no I/O, no clock, no threads. sender_daemon/serve/peer_directory.h drives it and
// guards it.
//
// Rules: a receiver is told to read from one that has committed exactly the version, while few read
// there. If nobody has it, one receiver of each view is let read from the senders, and the others
// wait for it. That grant ends with its commit, its refusal or its connection, when its read fails
// (then others come first), or when it makes no progress. A version with a delta is also waited
// for, for a short time, while receivers have an older one: they are about to apply the delta.
// Nobody waits for a version, nor reads it from the senders for others, when receivers have a newer
// one: that is to be taken. But of those that have read a part of it, one of each view completes it
// from the senders, so that some receiver gets ahead however fast versions come. So the senders
// send each version at most twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "common/sync_state/announcer_state.h"
#include "common/sync_state/live_state.h"

namespace dws {

// Receivers that read from one receiver at a time. With two, the number of sources triples each
// time; with more, each reads longer before it is a source itself.
inline constexpr size_t kPeerReadersMax = 2;
// A receiver that reads from another asks again within this time, or counts as gone there.
inline constexpr std::chrono::seconds kPeerReadLease{15};
// The receiver that reads from the senders may be without a byte for so long.
inline constexpr std::chrono::seconds kPeerGrantIdle{10};
// It may stage and commit for so long after its last byte, after it has read the ranks of other
// senders, for which it has at most so long.
inline constexpr std::chrono::seconds kPeerGrantCommit{60};
inline constexpr std::chrono::hours kPeerGrantOtherRanks{1};
// A receiver waits for others to apply a delta for at most so long.
inline constexpr std::chrono::seconds kPeerCatchUp{5};
// A receiver that waits asks again after this time, and a thousand that wait less often.
inline constexpr std::chrono::milliseconds kPeerPollMin{100};
inline constexpr std::chrono::milliseconds kPeerPollMax{1000};
inline constexpr size_t kPeersAvoidedMax = 16;  // of one request

// Threads: one at a time.
class PeerHandouts {
 public:
  // A receiver that serves others has a Sync stream; a newer connection of it replaces an older
  // one, in whichever order they come.
  void Connect(const std::string& receiver_id, ConnectionId connection, std::string address,
               std::string view);
  // The next four ignore a connection that is not, or no longer, known.
  void Disconnect(ConnectionId connection);
  void OnStaged(ConnectionId connection, TimePoint now);
  void OnCommitted(ConnectionId connection, const VersionAt& at);
  void OnNack(ConnectionId connection);
  // The receiver reads full tensors from this sender. `done`: all that it asked for was sent; then
  // the ranks of other senders may take the time that it has asked for.
  void OnRead(const std::string& receiver_id, bool done, TimePoint now);

  struct Question {
    std::string receiver_id;
    VersionAt at;
    WeightVersion newest = at.version;  // that was published; receivers cannot have a newer one
    bool has_delta = false;             // the version has one, from the version before
    bool begun = false;                 // the receiver has read a part of it from others
    // Addresses: that are not to be handed out, and that do not have the version. The first
    // kPeersAvoidedMax of both count.
    std::span<const std::string> avoid = {};
    std::span<const std::string> without = {};
    Duration other_ranks = {};  // how long the ranks of other senders may take
    bool failed = false;        // it was let read from the senders, and that has failed
    bool only_others = false;   // it may not read from the senders
  };
  struct Answer {
    std::string address;  // to read from; empty: none
    // Without an address: ask again after this time; zero: read from the senders.
    Duration wait = {};
    // Without an address: others have this version by now; nothing else is set.
    std::optional<WeightVersion> newer = std::nullopt;
  };
  // Returns nullopt if no connected receiver that serves others has this id.
  std::optional<Answer> Ask(const Question& question, TimePoint now);

  struct Totals {
    uint32_t able = 0;     // connected receivers that serve others
    uint32_t waiting = 0;  // of these
    uint64_t handed_out = 0;
    uint64_t grants = 0;
    uint64_t grants_lost = 0;  // that ended without a commit
  };
  Totals totals(TimePoint now) const;

 private:
  struct Receiver {
    ConnectionId connection;
    std::string address;
    std::string view;
    std::optional<VersionAt> committed;
    uint64_t handed_out = 0;  // the number of its last handout; 0: none
    // What it asked for last. `asked_since`: when it first asked for this version.
    std::optional<VersionAt> asked;
    TimePoint asked_since;
    TimePoint asked_at;
    bool waits = false;
    // It was told to read from this receiver, until its lease ends; empty: from none.
    std::string reads_from;
    TimePoint reads_until;
    size_t readers = 0;  // those that were told to read from this one
    // Set: it reads from the senders. Its grant ends at this time without progress.
    std::optional<TimePoint> grant_until;
    Duration other_ranks = {};
    bool only_others = false;
    std::optional<VersionAt> failed;  // what it failed to read from the senders, as which failure
    uint64_t failure = 0;
  };
  Receiver* Find(ConnectionId connection);
  // It reads from `from` from now on; empty: from none.
  void ReadFrom(Receiver& receiver, const std::string& from);
  // Its reads and its grant have ended.
  void End(Receiver& receiver, bool committed);
  void Expire(TimePoint now);
  // Removes it, with the reads from it.
  void Remove(const std::string& receiver_id);
  static bool Waits(const Receiver& receiver, TimePoint now);
  // Returns whether the addresses have the same host.
  static bool SameHost(const std::string& one, const std::string& other);
  static bool Avoids(const Question& question, const std::string& address);
  // The receiver to read from; null: none has the version, or all that do are busy. `busy` says
  // which.
  const std::string* Pick(const Question& question, const Receiver& asker, bool& busy) const;
  // These receivers have acknowledged the version, and do not have it.
  void Without(const Question& question);
  // The newest version above the asked one that another receiver of the view has.
  std::optional<WeightVersion> Newer(const Question& question, const Receiver& asker) const;
  // Returns whether another receiver waits for the version, which may read from the senders and has
  // not failed, or earlier.
  bool OthersWait(const Question& question, const Receiver& asker, TimePoint now) const;
  // Returns whether another receiver will have the version soon.
  bool Expected(const Question& question, const Receiver& asker, TimePoint now) const;
  Answer Wait(Receiver& asker);

  std::map<std::string, Receiver> receivers_;  // by id
  std::map<ConnectionId, std::string> connections_;
  std::map<std::string, VersionAt> completed_;  // by view: what one was let complete last
  uint64_t handed_out_ = 0;
  uint64_t failures_ = 0;
  uint64_t grants_ = 0;
  uint64_t grants_lost_ = 0;
};

}  // namespace dws
