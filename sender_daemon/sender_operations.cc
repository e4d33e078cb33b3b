#include "sender_daemon/sender_operations.h"

#include <utility>

#include "common/proto_convert/convert.h"

namespace dws {

SenderOperations::SenderOperations(Names names, Parts parts)
    : names_(std::move(names)), parts_(parts), started_(parts.clock.Now()) {}

void SenderOperations::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State life = parts_.lifecycle.state();
  reply.set_daemon("dws-sender");
  reply.set_job_id(names_.job_id);
  reply.set_ready(life.ready);
  reply.set_reason(life.reason);
  reply.set_uptime_seconds(ToSeconds(parts_.clock.Now() - started_));
  v1::SenderStatus& sender = *reply.mutable_sender();
  sender.set_trainer_rank(names_.trainer_rank);
  sender.set_trainer_present(parts_.session.trainer_present());
  if (const RankStatePtr state = parts_.hub.Current(); state != nullptr) {
    *sender.mutable_stream() = ToProto(state->stream);
    sender.set_world_size(state->world_size);
    sender.set_rank_epoch(state->rank_epoch.value());
    sender.set_snapshot_bytes(state->snapshot->size_bytes());
    sender.set_retained_bytes(state->log->retained_bytes());
    for (const RetainedVersionPtr& version : state->log->All()) {
      v1::VersionStatus& row = *sender.add_versions();
      row.set_version(version->version.value());
      row.set_base_version(version->base.value_or(WeightVersion(0)).value());
      row.set_nnz(version->nnz);
      row.set_elements(state->layout().element_count());
      row.set_wire_bytes(version->object.size());
      row.set_full_bytes(state->layout().size_bytes());
      row.set_capture_seconds(version->capture_seconds);
      sender.set_newest_version(version->version.value());
    }
  }
  for (const auto& [id, receiver] : parts_.hub.Receivers()) {
    v1::ReceiverPeer& peer = *sender.add_receivers();
    peer.set_receiver_id(id);
    peer.set_present(receiver.connection.has_value());
    peer.set_committed_version(receiver.committed.value_or(WeightVersion(0)).value());
    peer.set_staged_version(receiver.staged.value_or(WeightVersion(0)).value());
    peer.set_last_error(receiver.last_error);
    peer.set_pause_seconds(receiver.last_commit.pause_seconds);
    peer.set_fetched_bytes(receiver.last_commit.fetched_bytes);
  }
}

Status SenderOperations::Verify(const Sink&) {
  return UnimplementedError("this sender does not verify yet");
}
Status SenderOperations::Resync(const v1::ResyncRequest&, const Sink&) {
  return FailedPreconditionError("a sender has no live weights to resync: ask a receiver");
}
Status SenderOperations::Drain(const v1::DrainRequest&, const Sink&) {
  return UnimplementedError("this sender does not drain yet");
}

}  // namespace dws
