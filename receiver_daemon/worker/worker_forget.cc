// An operator has the stream forgotten that this receiver follows: a wrong incarnation was
// accepted, or a clock went back, and the trainer that should be followed is refused as old. What
// memory holds is proved again by the digests of a sender that is welcomed afterwards; until then
// the engine does not run.
//
// 1. the engine is paused: whatever it runs with is of a stream that nobody vouches for any more
// 2. the ledger forgets, durably; an error leaves the engine to be proved against the stream it had
// 3. what is known of memory and senders goes, and the senders are connected to anew
#include "common/base/log.h"
#include "receiver_daemon/engine/lease_control.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

Status Worker::ForgetStream(const StreamId& stream) {
  DWS_RETURN_IF_ERROR(CheckForgotten(parts_.ledger.state().stream(), stream));
  if (engine_.has_value() && weights_ != nullptr) {
    LeaseControl control(engine_->leases, parts_.clock, parts_.pulse);
    if (const Status paused = control.Pause(pause_timeout_); !paused.ok()) {
      parts_.registry.EndAll(
          UnavailableError("its stream was forgotten, and it did not pause: {}", Message(paused)));
    }
    ForgetEngine();
    SetReadiness(false, fmt::format("the engine is paused: stream {} was forgotten by an operator; "
                                    "a sender's newest version is awaited",
                                    ToString(stream)));
  }
  if (parts_.group != nullptr) TellEngine();
  DWS_RETURN_IF_ERROR(
      Annotate(parts_.ledger.Append(StreamForgotten{.stream = stream}), "recording it"));
  // Not before: a decision that is still recorded binds the group.
  if (parts_.group != nullptr) parts_.group->OnForget(stream);
  const std::optional<StreamId> now = parts_.ledger.state().stream();
  parts_.subscription.Forget(now);
  LogWarning("stream_forgotten", {{"stream", ToString(stream)},
                                  {"follows", now.has_value() ? ToString(*now) : "none"}});
  if (parts_.on_forgotten) parts_.on_forgotten();
  return OkStatus();
}

}  // namespace dws
