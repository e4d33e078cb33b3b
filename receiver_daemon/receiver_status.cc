#include "receiver_daemon/receiver_status.h"

#include "common/proto_convert/convert.h"

namespace dws {

void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        v1::ReceiverStatus& status) {
  status.set_receiver_id(receiver_id);
  if (worker.live.has_value()) {
    *status.mutable_stream() = ToProto(worker.live->stream);
    status.set_committed_version(worker.live->version.value());
    *status.mutable_state_token() = ToProto(worker.state_token);
  }
  if (worker.target.has_value()) status.set_target_version(worker.target->value());
  status.set_stage(worker.stage);
  status.set_commits(worker.commits);
  status.set_repairs(worker.repairs);
  status.set_last_pause_seconds(worker.last_pause_seconds);
  for (const Subscription::Peer& peer : subscription.Peers()) {
    v1::SenderPeer& sender = *status.add_senders();
    sender.set_address(peer.address);
    sender.set_connected(peer.connected);
    if (peer.trainer_rank.has_value()) sender.set_trainer_rank(peer.trainer_rank->value());
    if (peer.newest.has_value()) sender.set_newest_version(peer.newest->value());
    sender.set_last_error(peer.last_error);
  }
  for (const EngineRegistry::RankState& rank : registry.Ranks()) {
    v1::EngineRankStatus& engine = *status.add_engine_ranks();
    engine.set_engine_rank(rank.engine_rank);
    engine.set_attached(rank.attached);
    engine.set_generating(rank.lease == EngineLease::State::kRunning);
    engine.set_generation(rank.generation.value());
    engine.set_client(rank.client);
  }
}

}  // namespace dws
