// The network of a commit group: the leader's service for the members, a member's link to the
// leader, and the thread that does what is due.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/loop_thread.h"
#include "common/service/peers/receiver_name.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/group/leader_link.h"
#include "receiver_daemon/group/leader_service.h"

namespace dws {

// Lifecycle: Start, then Stop, which ends all connections. Outlives the servers that serve its
// services. Threads: safe from any.
class GroupEndpoint {
 public:
  // `group` and `clock` must outlive it.
  GroupEndpoint(const ReceiverName& name, const PeerTls& tls, CommitGroup& group,
                const Clock& clock);
  ~GroupEndpoint();

  bool leads() const { return group_.place().leads(); }
  // For a leader: returns the service for a server; each server needs its own. Call it before
  // Start.
  grpc::Service* AddService();

  void Start();
  void Stop();

 private:
  CommitGroup& group_;
  const ReceiverName name_;
  std::vector<std::unique_ptr<LeaderService>> services_;
  std::unique_ptr<LeaderLink> link_;  // null: this is the leader
  LoopThread ticks_;
};

}  // namespace dws
