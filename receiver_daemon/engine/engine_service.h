// The gRPC service for engines: Attach, the lease stream, and Why. It converts messages; AttachDesk
// decides, and EngineLease holds the state.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "proto/engine.grpc.pb.h"
#include "receiver_daemon/engine/attach_desk.h"
#include "receiver_daemon/engine/engine_registry.h"

namespace dws {

// Lifecycle: all references outlive it. Threads: gRPC's.
class EngineServiceImpl final : public v1::EngineService::CallbackService {
 public:
  // `why` returns, as text, what engines wait for; it never blocks.
  EngineServiceImpl(AttachDesk& desk, EngineRegistry& registry, std::string handle_socket,
                    const Clock& clock, std::function<std::string()> why)
      : desk_(desk),
        registry_(registry),
        handle_socket_(std::move(handle_socket)),
        clock_(clock),
        why_(std::move(why)) {}

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const v1::AttachRequest* request,
                                   v1::AttachReply* reply) override;
  grpc::ServerBidiReactor<v1::LeaseUp, v1::LeaseDown>* Lease(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context, const v1::WhyRequest* request,
                                v1::WhyReply* reply) override;

 private:
  AttachDesk& desk_;
  EngineRegistry& registry_;
  const std::string handle_socket_;
  const Clock& clock_;
  const std::function<std::string()> why_;
};

}  // namespace dws
