// What the connections between senders tell of minibatches and gradients.
#pragma once

#include "common/model/weight_version.h"
#include "proto/train.pb.h"

namespace dws {

// Each pair of senders has two streams, one opened by each. Calls come from gRPC's threads, for one
// stream one at a time, and must not block.
class TrainListener {
 public:
  virtual ~TrainListener() = default;

  // Our stream to this rank's sender is a new one.
  virtual void OnOwner(TrainerRank rank) = 0;
  // It says something on our stream: as the leader, or as the owner of a shard.
  virtual void OnDown(TrainerRank from, const v1::TrainMessage& message) = 0;
  // Its stream to us is a new one.
  virtual void OnPeer(TrainerRank rank) = 0;
  // It says something on its stream: as a member, or as one that pushes gradients.
  virtual void OnUp(TrainerRank from, const v1::TrainMessage& message) = 0;
  // Its last stream to us has ended.
  virtual void OnPeerGone(TrainerRank rank) = 0;
};

}  // namespace dws
