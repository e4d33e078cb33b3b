#include "common/service/grpc/grpc_runtime.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <string_view>

#include "common/base/log/log.h"

namespace dws {
namespace {

// gRPC would write to stderr in a format that is not ours. Most of its lines are failed handshakes,
// which any stranger can cause at any rate, so they are kept low in level.
void Log(gpr_log_func_args* line) {
  std::string_view file = line->file;
  file.remove_prefix(file.rfind('/') + 1);
  const LogLevel level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  LogEvent(level, "grpc",
           {{"at", fmt::format("{}:{}", file, line->line)}, {"reason", line->message}});
}

}  // namespace

void KeepGrpcRunning() {
  gpr_set_log_function(Log);
  // This server listens on no address.
  static const grpc::Server* const kept = [] {
    static auto* const service = new grpc::CallbackGenericService;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(service);
    return builder.BuildAndStart().release();
  }();
  (void)kept;
}

}  // namespace dws
