// The receivers that a sender knows, on disk (LEDGER.md, "Known receivers"). After a restart the
// sender notices if a known receiver does not come back. It is not part of the ledger: it decides
// nothing about versions, and a damaged file does not stop the sender.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/limits.h"

namespace dws {

namespace limits {
inline constexpr uint64_t kKnownReceiversBytesMax = kReceiversMax * (2 * kIdBytesMax + 64);
}  // namespace limits

// A receiver as the sender remembers it over a restart.
struct KnownReceiver {
  std::string id;
  bool present = false;                 // when the file was written
  uint64_t last_seen_unix_seconds = 0;  // when `present` last changed; for people only

  friend bool operator==(const KnownReceiver&, const KnownReceiver&) = default;
};

// `receivers` has at most limits::kReceiversMax (CHECK).
std::string FormatKnownReceivers(std::span<const KnownReceiver> receivers);
// DATA_LOSS: damaged, or of an unknown version.
Result<std::vector<KnownReceiver>> ParseKnownReceivers(std::string_view text);

// Read and replace <state_folder>/receivers.known. Without a file, Load returns none. Both return
// errors of FileSystem; Load also DATA_LOSS as ParseKnownReceivers.
Result<std::vector<KnownReceiver>> LoadKnownReceivers(FileSystem& files,
                                                      const std::string& state_folder);
Status SaveKnownReceivers(FileSystem& files, const std::string& state_folder,
                          std::span<const KnownReceiver> receivers);

}  // namespace dws
