// The gRPC service for engines: Attach, the lease stream, boundaries, and Why. It converts
// messages; AttachQueue decides, EngineLease and CommitBoundary hold the state.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "proto/engine.grpc.pb.h"
#include "receiver_daemon/engine/attach_queue.h"
#include "receiver_daemon/engine/commit_boundary.h"
#include "receiver_daemon/engine/engine_registry.h"

namespace dws {

// Lifecycle: all references must outlive it. Threads: gRPC's.
class EngineServiceImpl final : public v1::EngineService::CallbackService {
 public:
  // The questions that it asks; neither of them blocks.
  struct Questions {
    std::function<std::string()> why;   // what engines wait for, as text
    std::function<uint64_t()> version;  // the version that memory has; 0: none
  };
  EngineServiceImpl(AttachQueue& attaches, EngineRegistry& registry, CommitBoundary& boundary,
                    std::string handle_socket, const Clock& clock, Questions questions)
      : attaches_(attaches),
        registry_(registry),
        boundary_(boundary),
        handle_socket_(std::move(handle_socket)),
        clock_(clock),
        questions_(std::move(questions)) {}

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const v1::AttachRequest* request,
                                   v1::AttachReply* reply) override;
  grpc::ServerBidiReactor<v1::LeaseUp, v1::LeaseDown>* Lease(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context, const v1::WhyRequest* request,
                                v1::WhyReply* reply) override;
  grpc::ServerUnaryReactor* Boundary(grpc::CallbackServerContext* context,
                                     const v1::BoundaryRequest* request,
                                     v1::BoundaryReply* reply) override;
  grpc::ServerUnaryReactor* EndBoundary(grpc::CallbackServerContext* context,
                                        const v1::EndBoundaryRequest* request,
                                        v1::BoundaryReply* reply) override;

 private:
  AttachQueue& attaches_;
  EngineRegistry& registry_;
  CommitBoundary& boundary_;
  const std::string handle_socket_;
  const Clock& clock_;
  const Questions questions_;
};

}  // namespace dws
