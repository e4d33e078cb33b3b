// Between absl::Status and grpc::Status; the codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"

namespace dws {

// A status travels in a header that gRPC limits to 8 KiB; a longer message would not arrive at all.
inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(Message(status));
  if (message.size() > limits::kErrorBytesMax) {
    message = std::string(Utf8Prefix(message, limits::kErrorBytesMax)) + " ... (shortened)";
  }
  return {static_cast<grpc::StatusCode>(status.code()), std::move(message)};
}

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return MakeStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace dws
