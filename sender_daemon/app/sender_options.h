// The options of a dws-sender.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/model/delta_profile.h"
#include "common/model/limits.h"
#include "common/service/program/daemon.h"
#include "common/sync_state/presence_limits.h"
#include "common/train_state/train_limits.h"
#include "common/transport/fabric/provider.h"
#include "common/transport/nccl/broadcast_parts.h"
#include "common/transport/same_host/host_id.h"
#include "sender_daemon/shared/shared_publisher.h"
#include "sender_daemon/slime/slime_publisher.h"

namespace dws {

// A plain value, set by the flags.
struct SenderOptions : DaemonOptions {
  uint32_t trainer_rank = 0;
  std::string state_folder;
  bool quarantine_damaged_ledger = false;
  uint64_t retain_bytes = uint64_t{1} << 30;
  size_t retain_versions = 64;
  uint64_t egress_bytes_per_second = 0;  // to receivers over TCP; 0: no limit
  FabricChoice fabric;
  bool huge_pages = false;                                            // for the snapshot
  std::chrono::seconds laggard_after = limits::kLaggardAfterDefault;  // zero: never left out
  ProfileChoice profile = ProfileChoice::kAuto;
  size_t threads = 1;    // for captures
  ByteSpan gpu_kernels;  // kernel_image.h; empty: trainers in host memory only
  BroadcastOptions broadcasts;
  std::chrono::milliseconds broadcast_timeout = limits::kBroadcastTimeoutDefault;
  // How long writing to shared_dir or slime_dir may fail before the sender is not ready; zero: for
  // ever.
  std::chrono::seconds folder_stale_after = limits::kStaleAfterDefault;
  // The senders of all trainer ranks, by rank, for training on demand; none: no such training.
  std::vector<std::string> train_peers;
  std::chrono::seconds train_peer_timeout = limits::kTrainPeerTimeoutDefault;
  std::string host_id = HostId();
  uint64_t host_cache_bytes = 0;
  uint64_t host_accumulate_bytes = 0;
  uint64_t object_bytes = limits::kObjectBytesDefault;  // that the rank gives others; 0: none
  SharedDirOptions shared_dir;
  SlimeDirOptions slime_dir;
};

// The views that are made whether or not a receiver follows them, because they are published to a
// folder; each once.
inline std::vector<std::string> KeptViews(const SenderOptions& options) {
  std::vector<std::string> views = options.shared_dir.views;
  const std::string& slime = options.slime_dir.view;
  if (!slime.empty() && std::ranges::find(views, slime) == views.end()) views.push_back(slime);
  return views;
}

}  // namespace dws
