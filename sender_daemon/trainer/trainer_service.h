// The service for the trainer: thin shells that post each call to the session's executor.
#pragma once

#include <utility>

#include "common/base/clock.h"
#include "common/base/threads/executor.h"
#include "proto/trainer.grpc.pb.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/publish_gate.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {

// The RPCs of the trainer: registers, publishes, waits.
class TrainerServiceImpl final : public v1::TrainerService::CallbackService {
 public:
  TrainerServiceImpl(const Clock& clock, Executor& executor, TrainerSession& session,
                     ReceiverHub& hub, SenderMetrics& metrics, PublishGate gate = {})
      : clock_(clock),
        executor_(executor),
        session_(session),
        hub_(hub),
        metrics_(metrics),
        gate_(std::move(gate)) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterReply* reply) override;
  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context,
                                  const v1::BeginRequest* request, v1::BeginReply* reply) override;
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context, const v1::PutRequest* request,
                                v1::PutReply* reply) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request, v1::AbortReply* reply) override;
  grpc::ServerUnaryReactor* Publish(grpc::CallbackServerContext* context,
                                    const v1::PublishRequest* request,
                                    v1::PublishReply* reply) override;
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context,
                                 const v1::WaitRequest* request, v1::WaitReply* reply) override;

 private:
  // Runs `call` on the executor and finishes the RPC with its result. If the trainer gave the call
  // up while it waited, it does not run.
  template <typename Call>
  grpc::ServerUnaryReactor* Post(grpc::CallbackServerContext* context, Call call);

  // Fills in what the version cost, if it is still retained.
  void FillFigures(WeightVersion version, const WaitOutcome& outcome, v1::WaitReply& reply) const;

  const Clock& clock_;
  Executor& executor_;
  TrainerSession& session_;
  ReceiverHub& hub_;
  SenderMetrics& metrics_;
  const PublishGate gate_;
};

}  // namespace dws
