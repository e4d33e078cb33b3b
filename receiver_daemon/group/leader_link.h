// A member's connection to the leader of its commit group: the Join stream, with reconnection. Only
// carries messages: CommitGroup knows what they mean.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "proto/group.grpc.pb.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/peer_channel.h"
#include "receiver_daemon/stream_call.h"

namespace dws {

// Lifecycle: connects with its first Tick; Stop waits for the stream's end. Threads: safe from any.
class LeaderLink {
 public:
  struct Identity {
    std::string job_id;
    std::string receiver_id;
  };

  // `group` and `clock` outlive it.
  LeaderLink(Identity identity, PeerTls tls, CommitGroup& group, const Clock& clock);

  // Connects when it is time, and drops a stream that has been silent for
  // limits::kKeepaliveTimeout.
  void Tick();
  void Stop();

 private:
  using GroupCall = StreamCall<v1::GroupUp, v1::GroupDown>;

  v1::GroupUp Hello() const;
  Status OnMessage(const GroupCall::Ptr& call, const v1::GroupDown& message, const Peer& peer);
  Status OnWelcome(const GroupCall::Ptr& call, const v1::GroupWelcome& welcome, const Peer& peer);
  void OnDone(const Status& reason);

  const Identity identity_;
  CommitGroup& group_;
  const Clock& clock_;
  PeerChannel channel_;
  std::optional<ConnectionId> connection_;  // of the reactions: since the welcome

  Mutex mutex_;
  CondVar done_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool starting_ GUARDED_BY(mutex_) = false;  // a call is about to be in call_
  GroupCall::Ptr call_ GUARDED_BY(mutex_);
  bool done_early_ GUARDED_BY(mutex_) = false;  // it ended before it was in call_
  TimePoint last_heard_ GUARDED_BY(mutex_);
  TimePoint next_attempt_ GUARDED_BY(mutex_);
  Duration delay_ GUARDED_BY(mutex_);
};

}  // namespace dws
