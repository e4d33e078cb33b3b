#include "receiver_daemon/receiver_options.h"

namespace dws {

Status CheckOptions(const ReceiverOptions& options) {
  if (options.job_id.empty() || options.job_id.size() > limits::kIdBytesMax) {
    return InvalidArgumentError("--job-id has {} bytes, expected 1 to {}", options.job_id.size(),
                                limits::kIdBytesMax);
  }
  if (options.receiver_id.empty() || options.receiver_id.size() > limits::kIdBytesMax) {
    return InvalidArgumentError("--receiver-id has {} bytes, expected 1 to {}",
                                options.receiver_id.size(), limits::kIdBytesMax);
  }
  if (!options.follow.slime_dir.empty()) {
    const bool alone = options.senders.empty() && options.shared_dir.root.empty();
    if (alone && !options.follow.checkpoint.empty()) return OkStatus();
    return InvalidArgumentError(
        "--slime-dir needs --checkpoint, the local one to apply versions to, and goes without "
        "--sender and --shared-dir");
  }
  const bool shared = !options.shared_dir.root.empty();
  if ((options.senders.empty() && !shared) || options.senders.size() > limits::kSendersMax) {
    return InvalidArgumentError(
        "--sender was given {} times, expected one for each trainer rank, at most {}, or "
        "--shared-dir",
        options.senders.size(), limits::kSendersMax);
  }
  if (options.staging_bytes < limits::kStagingBytesMin) {
    return InvalidArgumentError("--staging-bytes is {}, expected at least {}",
                                options.staging_bytes, limits::kStagingBytesMin);
  }
  const auto mistakes = GroupMistakes(options.group);
  if (mistakes.empty()) return OkStatus();
  return InvalidArgumentError("--{}: {}", mistakes.front().option, mistakes.front().message);
}

}  // namespace dws
