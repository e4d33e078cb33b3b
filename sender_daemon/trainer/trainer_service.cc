#include "sender_daemon/trainer/trainer_service.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/serve/wait_outcome.h"

namespace dws {
namespace {

constexpr double kWaitSecondsMax = 24 * 3600;
// Deadlines are sent as durations, so the trainer's passes a little before ours.
constexpr std::chrono::milliseconds kDeadlineMargin{100};  // 0.1 s, in WhyEnded's words

bool StillWanted(const grpc::CallbackServerContext& context) {
  return !context.IsCancelled() &&
         std::chrono::system_clock::now() + kDeadlineMargin < context.deadline();
}

Status GivenUp() { return CancelledError("the time for this call is over: it did nothing"); }

// Returns the status of a call that was given up because nobody waits for it: if the trainer does
// not know yet that its time is over, the status says so.
Status WhyEnded(Status status, const grpc::CallbackServerContext& context) {
  if (!absl::IsCancelled(status) || context.IsCancelled() || StillWanted(context)) return status;
  return DeadlineExceededError("{}; the last 0.1 s are kept for the answer", Message(status));
}

void Refuse(grpc::ServerUnaryReactor& reactor) {
  reactor.Finish(
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "the sender is busy or shutting down; try again"});
}

Result<WaitCondition> ParseCondition(const v1::WaitRequest& request) {
  switch (request.policy()) {
    case v1::WAIT_POLICY_ALL:
      return WaitCondition{.policy = WaitCondition::Policy::kAll};
    case v1::WAIT_POLICY_QUORUM:
      if (request.quorum() == 0)
        return InvalidArgumentError("a quorum of 0 receivers is always met");
      return WaitCondition{.policy = WaitCondition::Policy::kQuorum, .quorum = request.quorum()};
    case v1::WAIT_POLICY_ANY:
      return WaitCondition{.policy = WaitCondition::Policy::kAny};
    default:  // an open enum on the wire
      return InvalidArgumentError("wait policy {} is unknown, expected all, quorum or any",
                                  static_cast<int>(request.policy()));
  }
}

}  // namespace

template <typename Call>
grpc::ServerUnaryReactor* TrainerServiceImpl::Post(grpc::CallbackServerContext* context,
                                                   Call call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto task = [context, reactor, call = std::move(call)] {
    const Status status = StillWanted(*context) ? call() : GivenUp();
    reactor->Finish(ToGrpc(WhyEnded(status, *context)));
  };
  if (!executor_.Post(std::move(task))) Refuse(*reactor);
  return reactor;
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Register(grpc::CallbackServerContext* context,
                                                       const v1::RegisterRequest* request,
                                                       v1::RegisterReply* reply) {
  const std::optional<UnixPeer> peer = PeerOfCall(context->peer());
  return Post(context, [this, request, reply, peer]() -> Status {
    DWS_ASSIGN_OR_RETURN(*reply, session_.Register(*request, peer));
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Begin(grpc::CallbackServerContext* context,
                                                    const v1::BeginRequest* request,
                                                    v1::BeginReply* reply) {
  return Post(context, [this, request, reply]() -> Status {
    DWS_RETURN_IF_ERROR(gate_.may(WeightVersion(request->version())));
    DWS_ASSIGN_OR_RETURN(*reply, session_.Begin(*request));
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Put(grpc::CallbackServerContext* context,
                                                  const v1::PutRequest* request, v1::PutReply*) {
  return Post(context, [this, context, request] {
    return session_.Put(*request, [context] { return StillWanted(*context); });
  });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Abort(grpc::CallbackServerContext* context,
                                                    const v1::AbortRequest* request,
                                                    v1::AbortReply*) {
  return Post(context, [this, request] { return session_.Abort(*request); });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Publish(grpc::CallbackServerContext* context,
                                                      const v1::PublishRequest* request,
                                                      v1::PublishReply* reply) {
  const TimePoint arrived_at = clock_.Now();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto task = [this, context, request, reply, reactor, arrived_at] {
    bool answered = false;  // then the call and all that belongs to it is gone
    const WeightVersion version(request->version());
    const auto answer = [&](const v1::PublishReply& published) {
      answered = true;
      gate_.captured(version);
      metrics_.OnPublishReply(clock_.Now() - arrived_at);
      *reply = published;
      reactor->Finish(grpc::Status::OK);
    };
    const auto wanted = [context] { return StillWanted(*context); };
    const Status may = wanted() ? gate_.may(version) : GivenUp();
    const Result<v1::PublishReply> published =
        may.ok() ? session_.Publish(*request, wanted, answer) : may;
    if (answered) return;
    if (published.ok()) return answer(*published);
    metrics_.OnPublishReply(clock_.Now() - arrived_at);
    reactor->Finish(ToGrpc(WhyEnded(published.status(), *context)));
  };
  if (!executor_.Post(std::move(task))) Refuse(*reactor);
  return reactor;
}

void TrainerServiceImpl::FillFigures(WeightVersion version, const WaitOutcome& outcome,
                                     v1::WaitReply& reply) const {
  const RankStatePtr state = hub_.Current();
  const RetainedVersionPtr retained = state == nullptr ? nullptr : state->log->Find(version);
  if (retained == nullptr) return;
  reply.set_wire_bytes(retained->wire_bytes(state->layout().size_bytes()));
  if (outcome.met_at.has_value()) {
    reply.set_publish_to_commit_seconds(ToSeconds(*outcome.met_at - retained->accepted_at));
  }
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Wait(grpc::CallbackServerContext* context,
                                                   const v1::WaitRequest* request,
                                                   v1::WaitReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto condition = ParseCondition(*request);
  const double seconds = request->timeout_seconds();
  if (!condition.ok() || !std::isfinite(seconds) || seconds < 0) {
    reactor->Finish(ToGrpc(
        condition.ok() ? InvalidArgumentError("a timeout of {} s is not a time to wait", seconds)
                       : condition.status()));
    return reactor;
  }
  const auto timeout = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kWaitSecondsMax)));
  auto wait = [this, context, reactor, reply, request, timeout, condition = *condition] {
    if (const Status known = session_.CheckWait(*request); !known.ok())
      return reactor->Finish(ToGrpc(known));
    const WeightVersion version(request->version());
    hub_.AddWait(
        {.version = version,
         .condition = condition,
         .deadline = clock_.Now() + timeout,
         .cancelled = [context] { return context->IsCancelled(); },
         .done =
             [this, reactor, reply, version](const Status& status, const WaitOutcome& outcome) {
               if (!status.ok()) {
                 const grpc::Status failed = ToGrpc(status);
                 return reactor->Finish(
                     {failed.error_code(), failed.error_message(), ShortReply(outcome)});
               }
               FillReply(outcome, *reply);
               FillFigures(version, outcome, *reply);
               reactor->Finish(grpc::Status::OK);
             }});
  };
  if (!executor_.Post(std::move(wait))) Refuse(*reactor);
  return reactor;
}

}  // namespace dws
