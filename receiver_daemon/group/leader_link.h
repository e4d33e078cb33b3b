// A member's connection to the leader of its commit group: the Join stream, with reconnection. Only
// carries messages: CommitGroup knows what they mean.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/service/peers/peer_channel.h"
#include "common/service/peers/receiver_name.h"
#include "common/service/peers/stream_link.h"
#include "proto/group.grpc.pb.h"
#include "receiver_daemon/group/commit_group.h"

namespace dws {

// Lifecycle: connects with its first Tick; Stop waits for the stream's end. Threads: safe from any.
class LeaderLink {
 public:
  // `group` and `clock` must outlive it.
  LeaderLink(ReceiverName name, PeerTls tls, CommitGroup& group, const Clock& clock);

  // See StreamLink.
  void Tick() { stream_.Tick(); }
  void Stop() { stream_.Stop(); }

 private:
  using GroupStream = StreamLink<v1::GroupUp, v1::GroupDown>;

  v1::GroupUp Hello() const;
  Status OnMessage(const GroupStream::CallPtr& call, const v1::GroupDown& message,
                   const Peer& peer);
  Status OnWelcome(const GroupStream::CallPtr& call, const v1::GroupWelcome& welcome,
                   const Peer& peer);
  void OnDone(const Status& reason, bool lost);

  const ReceiverName name_;
  CommitGroup& group_;
  PeerChannel channel_;
  // Used only by the reactions.
  std::optional<ConnectionId> connection_;  // since the welcome
  std::string refusal_;                     // the last, since the last welcome
  GroupStream stream_;
};

}  // namespace dws
