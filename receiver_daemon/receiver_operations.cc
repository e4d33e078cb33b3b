#include "receiver_daemon/receiver_operations.h"

#include <utility>

#include "receiver_daemon/receiver_status.h"

namespace dws {

ReceiverOperations::ReceiverOperations(Names names, Parts parts)
    : names_(std::move(names)), parts_(parts), started_(parts.clock.Now()) {}

void ReceiverOperations::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State state = parts_.lifecycle.state();
  const WorkerStatus worker = parts_.worker.status();
  reply.set_daemon("dws-receiver");
  reply.set_job_id(names_.job_id);
  reply.set_ready(state.ready);
  reply.set_reason(state.ready ? worker.trouble : state.reason);
  reply.set_uptime_seconds(ToSeconds(parts_.clock.Now() - started_));
  FillReceiverStatus(names_.receiver_id, worker, parts_.subscription, parts_.registry,
                     *reply.mutable_receiver());
}

Status ReceiverOperations::Verify(const Sink&) {
  return UnimplementedError("this receiver does not verify yet");
}
Status ReceiverOperations::Resync(const v1::ResyncRequest&, const Sink&) {
  return UnimplementedError("this receiver does not resync yet");
}
Status ReceiverOperations::Drain(const v1::DrainRequest&, const Sink&) {
  return UnimplementedError("this receiver does not drain yet");
}

}  // namespace dws
