// A sender that does not listen to what others say of minibatches.
#pragma once

#include "sender_daemon/on_demand/gather/train_listener.h"

namespace dws {

class SilentListener final : public TrainListener {
 public:
  void OnOwner(TrainerRank) override {}
  void OnDown(TrainerRank, const v1::TrainMessage&) override {}
  void OnPeer(TrainerRank) override {}
  void OnUp(TrainerRank, const v1::TrainMessage&) override {}
  void OnPeerGone(TrainerRank) override {}
};

}  // namespace dws
