// The receivers of this sender that serve each other: PeerHandouts behind a mutex, and what it
// decided as a reply and in the status.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/peer_handouts.h"
#include "proto/sender_status.pb.h"
#include "proto/sync.pb.h"

namespace dws {

// Threads: safe from any.
class PeerDirectory {
 public:
  explicit PeerDirectory(const Clock& clock) : clock_(clock) {}

  // INVALID_ARGUMENT: others cannot dial this address.
  static Status CheckAddress(const std::string& address);

  // The receiver's Hello; the others are ignored for a connection without one.
  void Connect(const std::string& receiver_id, ConnectionId connection, std::string address,
               std::string view);
  void Disconnect(ConnectionId connection);
  void OnStaged(ConnectionId connection);
  void OnCommitted(ConnectionId connection, const VersionAt& at);
  void OnNack(ConnectionId connection);
  // See PeerHandouts.
  void OnRead(const std::string& receiver_id, bool done);

  // Answers `request` about a version that is retained; `newest` was published last. UNAVAILABLE:
  // the receiver is not known here. OUT_OF_RANGE: other receivers have a newer version, which is to
  // be taken.
  Status Answer(const v1::PeersRequest& request, const VersionAt& at, WeightVersion newest,
                bool has_delta, v1::PeersReply& reply);

  // Nothing while no receiver serves others, nor has.
  void FillStatus(v1::SenderStatus& status) const;

 private:
  const Clock& clock_;
  mutable Mutex mutex_;
  PeerHandouts handouts_ GUARDED_BY(mutex_);
};

}  // namespace dws
