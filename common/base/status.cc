#include "common/base/status.h"

#include <cerrno>
#include <system_error>

namespace dws {

// An errno that is not listed becomes UNAVAILABLE, so that the caller retries.
Status ErrnoError(int errno_value, std::string_view context) {
  const std::string text =
      fmt::format("{}: {}", context, std::generic_category().message(errno_value));
  switch (errno_value) {
    case ENOENT:
      return MakeStatus(absl::StatusCode::kNotFound, text);
    case EEXIST:
      return MakeStatus(absl::StatusCode::kAlreadyExists, text);
    case EACCES:
    case EPERM:
      return MakeStatus(absl::StatusCode::kPermissionDenied, text);
    case EINVAL:
      return MakeStatus(absl::StatusCode::kInvalidArgument, text);
    case ENOSPC:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EDQUOT:
      return MakeStatus(absl::StatusCode::kResourceExhausted, text);
    case EROFS:
      return MakeStatus(absl::StatusCode::kFailedPrecondition, text);
    case EIO:
      return MakeStatus(absl::StatusCode::kDataLoss, text);
    case ETIMEDOUT:
      return MakeStatus(absl::StatusCode::kDeadlineExceeded, text);
    default:
      return MakeStatus(absl::StatusCode::kUnavailable, text);
  }
}

}  // namespace dws
