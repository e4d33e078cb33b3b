// Converts between absl::Status and grpc::Status, whose codes have the same numbers.
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

// Returns the longest prefix of `text` that fits into a header. Each byte that is not printable
// ASCII, and '%', takes three bytes there.
inline std::string_view HeaderPrefix(std::string_view text) {
  size_t encoded = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool plain = text[i] >= ' ' && text[i] <= '~' && text[i] != '%';
    encoded += plain ? 1 : 3;
    if (encoded > limits::kErrorBytesMax) return Utf8Prefix(text, i);
  }
  return text;
}

// A status is sent in a header, which gRPC limits to 8 KiB. With a longer message neither the
// message nor the code would arrive. Unprintable characters are escaped because the message may
// quote names from clients, and the receiver prints it.
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
  // gRPC's own errors, such as an unknown service, may have no text. The text is escaped because
  // the peer may be anybody.
  return MakeStatus(code, status.error_message().empty()
                              ? absl::StatusCodeToString(code)
                              : EscapeUnprintable(status.error_message()));
}

}  // namespace dws
