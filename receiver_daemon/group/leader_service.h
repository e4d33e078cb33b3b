// What the members of a commit group talk to: the Join streams, on their leader. Thin shells:
// CommitGroup knows what the messages mean.
#pragma once

#include <string>

#include "proto/group.grpc.pb.h"
#include "receiver_daemon/group/commit_group.h"

namespace dws {

class LeaderService final : public v1::GroupService::CallbackService {
 public:
  struct Identity {
    std::string job_id;
    std::string receiver_id;
  };

  // `group` outlives it.
  LeaderService(Identity identity, CommitGroup& group)
      : identity_(std::move(identity)), group_(group) {}

  grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>* Join(
      grpc::CallbackServerContext* context) override;

 private:
  const Identity identity_;
  CommitGroup& group_;
};

}  // namespace dws
