// Between absl::Status and grpc::Status; the codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "common/base/status.h"

namespace dws {

inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(Message(status))};
}

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return MakeStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace dws
