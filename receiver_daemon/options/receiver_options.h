// What a dws-receiver is told when it starts.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/delta_profile.h"
#include "common/model/limits.h"
#include "common/service/security/tls_files.h"
#include "common/sync_state/presence_limits.h"
#include "common/sync_state/sender_watch.h"
#include "common/transport/nccl/broadcast_parts.h"
#include "receiver_daemon/group/group_place.h"

namespace dws {

// To follow a folder of slime's versions instead of senders.
struct FollowOptions {
  std::string slime_dir;   // empty: senders are followed
  std::string checkpoint;  // the local one that versions are applied to
  uint32_t poll_ms = 500;
  // The engine that loads it, over its HTTP server; no URL: nobody is told.
  std::string engine_url;
  std::string engine_kind = "auto";  // "sglang", "vllm"; "auto": to be found out
  std::string engine_pause_mode;     // empty: the engine's usual
  std::string engine_token_file;
  std::string engine_ca;
  bool engine_insecure = false;
  std::string engine_checkpoint;  // where the engine sees `checkpoint`; empty: there
  uint32_t load_timeout_seconds = 600;
};

// --shared-dir and its companions.
struct SharedSideOptions {
  std::string root;  // empty: none
  std::string key_file;
  uint32_t ranks = 1;  // trainer ranks, where there are no connections to their senders
  uint32_t poll_ms = limits::kSharedPollDefault.count();
  std::string before_read;  // a command; empty: none
};

struct ReceiverOptions {
  std::string job_id;
  std::string receiver_id;
  std::vector<std::string> senders;               // as CheckPeerAddress
  std::string socket = "/run/dws/receiver.sock";  // and <socket>.handles
  std::string listen;                             // operators, and a group's members; empty: none
  std::string http;                               // empty: none
  std::string state_dir = "/var/lib/dws/receiver";
  bool quarantine_damaged_ledger = false;
  std::string ports_file;  // empty: none
  bool insecure = false;   // TCP without TLS
  uint64_t staging_bytes = limits::kStagingBytesDefault;
  uint64_t scrub_bytes_per_second = limits::kScrubBytesPerSecondDefault;  // cap; 0: no scrub
  uint32_t scrub_pass_seconds = limits::kScrubPassDefault.count();
  uint32_t stale_after_seconds = limits::kStaleAfterDefault.count();
  bool stale_keeps_ready = false;
  size_t threads = 1;  // besides the worker
  ProfileChoice profile = ProfileChoice::kAuto;
  TlsFiles tls;                 // none: plain
  std::string tls_server_name;  // expected in senders' certificates; empty: the host dialled
  std::vector<std::string> allow_users;  // names or uids (unix_socket.h)
  SharedSideOptions shared_dir;
  GroupPlace group;
  FollowOptions follow;
  BroadcastOptions broadcasts;
  uint32_t gpu_duty_percent = 100;  // of a GPU's time, for work beside the engine's
  ByteSpan gpu_kernels;             // kernel_image.h; empty: engines in host memory only

  StaleRule stale() const {
    return {.after = std::chrono::seconds(stale_after_seconds), .keeps_ready = stale_keeps_ready};
  }
};

// Other daemons that it dials over plain TCP.
struct PlainPeer {
  std::string_view option;  // "sender"
  std::string address;
};
std::vector<PlainPeer> PlainPeers(const ReceiverOptions& options);
// The same as words: "--sender 10.0.0.5:7700".
std::vector<std::string> PlainPeerNames(const ReceiverOptions& options);
// FAILED_PRECONDITION, saying what to do, unless --insecure is given.
Status CheckPlainPeer(const ReceiverOptions& options, const PlainPeer& peer);

// INVALID_ARGUMENT or FAILED_PRECONDITION: an option, by its flag.
Status CheckOptions(const ReceiverOptions& options);

}  // namespace dws
