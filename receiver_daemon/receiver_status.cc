#include "receiver_daemon/receiver_status.h"

#include "common/proto_convert/convert.h"

namespace dws {
namespace {

void FillLastCommit(const CommitReport& report, v1::LastCommit& commit) {
  commit.set_version(report.version.value());
  commit.set_fetched_bytes(report.delta_bytes + report.full_bytes);
  commit.set_full_bytes(report.model_bytes);
  commit.set_nnz(report.nnz);
  commit.set_elements(report.elements);
  commit.set_fetch_seconds(ToSeconds(report.fetch));
  commit.set_stage_seconds(ToSeconds(report.stage));
  commit.set_pause_seconds(ToSeconds(report.pause));
  commit.set_commit_seconds(ToSeconds(report.commit));
  commit.set_repaired(report.repaired);
  commit.set_unix_seconds(report.unix_seconds);
}

void FillWorker(const WorkerStatus& worker, v1::ReceiverStatus& status) {
  if (worker.live.has_value()) {
    *status.mutable_stream() = ToProto(worker.live->stream);
    status.set_committed_version(worker.live->version.value());
    *status.mutable_state_token() = ToProto(worker.state_token);
  }
  if (worker.target.has_value()) status.set_target_version(worker.target->value());
  status.set_stage(worker.stage);
  status.set_stage_done_bytes(worker.stage_done_bytes);
  status.set_stage_total_bytes(worker.stage_total_bytes);
  status.set_commits(worker.commits);
  status.set_repairs(worker.repairs);
  status.set_staging_bytes(worker.staging_bytes);
  status.set_staging_bytes_max(worker.staging_bytes_max);
  uint64_t nacks = 0;
  for (const auto& [code, count] : worker.nacks) nacks += count;
  status.set_nacks(nacks);
  if (worker.last_commit.has_value()) {
    status.set_last_pause_seconds(ToSeconds(worker.last_commit->pause));
    FillLastCommit(*worker.last_commit, *status.mutable_last_commit());
  }
}

}  // namespace

void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        v1::ReceiverStatus& status) {
  status.set_receiver_id(receiver_id);
  FillWorker(worker, status);
  const NewestOffered newest = FindNewestOffered(worker, subscription);
  for (const Subscription::Peer& peer : subscription.Peers()) {
    v1::SenderPeer& sender = *status.add_senders();
    sender.set_address(peer.address);
    sender.set_connected(peer.connected);
    if (peer.trainer_rank.has_value()) sender.set_trainer_rank(peer.trainer_rank->value());
    if (peer.newest.has_value()) sender.set_newest_version(peer.newest->value());
    sender.set_last_error(peer.last_error);
  }
  status.set_newest_version(newest.version);
  status.set_version_lag(newest.lag);
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
