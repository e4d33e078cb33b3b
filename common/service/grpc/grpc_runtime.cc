#include "common/service/grpc/grpc_runtime.h"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <string_view>

#include "common/base/log.h"

namespace dws {
namespace {

// What gRPC would write to stderr in a format of its own: handshakes that failed, mostly, which any
// stranger can cause as often as he likes.
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
