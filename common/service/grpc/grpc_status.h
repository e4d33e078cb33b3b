// Between absl::Status and grpc::Status; the codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <utility>

#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"

namespace dws {

// The start of `text` that a header has room for, in which what is not printable ASCII takes three
// bytes.
inline std::string_view HeaderPrefix(std::string_view text) {
  size_t encoded = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool plain = text[i] >= ' ' && text[i] <= '~' && text[i] != '%';
    encoded += plain ? 1 : 3;
    if (encoded > limits::kErrorBytesMax) return Utf8Prefix(text, i);
  }
  return text;
}

// A status travels in a header that gRPC limits to 8 KiB; a longer message would not arrive at all,
// nor would its code. Names from clients are escaped: the message is printed by others.
inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string whole = EscapeUnprintable(Message(status));
  std::string message(HeaderPrefix(whole));
  if (message.size() < whole.size()) message += " ... (shortened)";
  return {static_cast<grpc::StatusCode>(status.code()), std::move(message)};
}

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  // gRPC itself says little of a service that is not there. The peer may be anybody.
  return MakeStatus(code, status.error_message().empty()
                              ? absl::StatusCodeToString(code)
                              : EscapeUnprintable(status.error_message()));
}

}  // namespace dws
