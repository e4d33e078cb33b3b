// The receivers that a sender knows, on disk (LEDGER.md, "Known receivers"): so that one that does
// not come back after the sender's restart is missed. A file of its own beside the ledger: what it
// says decides nothing about versions, and a damaged one stops nobody.
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

struct KnownReceiver {
  std::string id;
  bool present = false;                 // when the file was written
  uint64_t last_seen_unix_seconds = 0;  // for people

  friend bool operator==(const KnownReceiver&, const KnownReceiver&) = default;
};

// At most limits::kReceiversMax of them (CHECK).
std::string FormatKnownReceivers(std::span<const KnownReceiver> receivers);
// DATA_LOSS: damaged, or of a version that is not known here.
Result<std::vector<KnownReceiver>> ParseKnownReceivers(std::string_view text);

// <state_folder>/receivers.known. Load: none where there is no file. Both fail as FileSystem does.
Result<std::vector<KnownReceiver>> LoadKnownReceivers(FileSystem& files,
                                                      const std::string& state_folder);
Status SaveKnownReceivers(FileSystem& files, const std::string& state_folder,
                          std::span<const KnownReceiver> receivers);

}  // namespace dws
