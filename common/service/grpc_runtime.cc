#include "common/service/grpc_runtime.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace dws {

void KeepGrpcRunning() {
  // A server that listens nowhere.
  static const grpc::Server* const kept = [] {
    static auto* const service = new grpc::CallbackGenericService;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(service);
    return builder.BuildAndStart().release();
  }();
  (void)kept;
}

}  // namespace dws
