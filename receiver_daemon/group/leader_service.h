// What the members of a commit group talk to: the Join streams, on their leader. Thin shells:
// CommitGroup knows what the messages mean.
#pragma once

#include <string>

#include "common/service/peers/receiver_name.h"
#include "proto/group.grpc.pb.h"
#include "receiver_daemon/group/commit_group.h"

namespace dws {

// The leader's side of the Join streams of its members.
class LeaderService final : public v1::GroupService::CallbackService {
 public:
  // `group` must outlive it.
  LeaderService(ReceiverName name, CommitGroup& group) : name_(std::move(name)), group_(group) {}

  grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>* Join(
      grpc::CallbackServerContext* context) override;

 private:
  const ReceiverName name_;
  CommitGroup& group_;
};

}  // namespace dws
