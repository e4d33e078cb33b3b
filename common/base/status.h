// Errors as values. Every fallible function of DWS returns absl::Status or Result<T>; this header
// has short ways to make, extend and return them.
//
// A code says what the caller should do: UNAVAILABLE retry, ABORTED redo from base,
// FAILED_PRECONDITION stop and tell the operator, DATA_LOSS reject and NACK, RESOURCE_EXHAUSTED
// shed load, INVALID_ARGUMENT fix the request. A message says what was expected, what was found,
// and which object it is about.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace dws {

using Status = absl::Status;
template <typename T>
using Result = absl::StatusOr<T>;

inline Status OkStatus() { return absl::OkStatus(); }

// Debian's absl::string_view is not std::string_view; only the next two functions convert.
inline Status MakeStatus(absl::StatusCode code, std::string_view message) {
  return Status(code, absl::string_view(message.data(), message.size()));
}
inline std::string_view Message(const Status& status) {
  return {status.message().data(), status.message().size()};
}
// "DATA_LOSS: block 3 ..." for logs and for printing.
inline std::string ToString(const Status& status) { return status.ToString(); }

// DataLossError("frame {}: checksum {:016x}, expected {:016x}", ...), and one such function for
// each code.
#define DWS_DEFINE_ERROR(Name, kCode)                                                             \
  template <typename... Args>                                                                     \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {                               \
    return MakeStatus(absl::StatusCode::kCode, fmt::format(format, std::forward<Args>(args)...)); \
  }
DWS_DEFINE_ERROR(InvalidArgumentError, kInvalidArgument)
DWS_DEFINE_ERROR(FailedPreconditionError, kFailedPrecondition)
DWS_DEFINE_ERROR(DataLossError, kDataLoss)
DWS_DEFINE_ERROR(UnavailableError, kUnavailable)
DWS_DEFINE_ERROR(AbortedError, kAborted)
DWS_DEFINE_ERROR(NotFoundError, kNotFound)
DWS_DEFINE_ERROR(AlreadyExistsError, kAlreadyExists)
DWS_DEFINE_ERROR(ResourceExhaustedError, kResourceExhausted)
DWS_DEFINE_ERROR(DeadlineExceededError, kDeadlineExceeded)
DWS_DEFINE_ERROR(CancelledError, kCancelled)
DWS_DEFINE_ERROR(UnimplementedError, kUnimplemented)
DWS_DEFINE_ERROR(InternalError, kInternal)
#undef DWS_DEFINE_ERROR

// Returns a status with the same code and "context: " before the message.
inline Status Annotate(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeStatus(status.code(), fmt::format("{}: {}", context, Message(status)));
}

// UNAVAILABLE, NOT_FOUND, ... from errno; the message is "context: strerror".
Status ErrnoError(int errno_value, std::string_view context);

}  // namespace dws

#define DWS_RETURN_IF_ERROR(expression)                                               \
  do {                                                                                \
    if (::dws::Status dws_status = (expression); !dws_status.ok()) return dws_status; \
  } while (false)

#define DWS_CONCAT_INNER(a, b) a##b
#define DWS_CONCAT(a, b) DWS_CONCAT_INNER(a, b)
// DWS_ASSIGN_OR_RETURN(auto value, Fallible());
#define DWS_ASSIGN_OR_RETURN(left, expression) \
  DWS_ASSIGN_OR_RETURN_INNER(DWS_CONCAT(dws_result_, __LINE__), left, expression)
#define DWS_ASSIGN_OR_RETURN_INNER(result, left, expression) \
  auto result = (expression);                                \
  if (!result.ok()) return result.status();                  \
  left = *std::move(result)
