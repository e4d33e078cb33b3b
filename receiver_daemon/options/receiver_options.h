// The options of a dws-receiver.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/delta_profile.h"
#include "common/model/host_limits.h"
#include "common/model/limits.h"
#include "common/service/program/daemon.h"
#include "common/sync_state/presence_limits.h"
#include "common/sync_state/receiver_plan.h"
#include "common/sync_state/sender_watch.h"
#include "common/transport/fabric/provider.h"
#include "common/transport/nccl/broadcast_parts.h"
#include "common/transport/s3/store.h"
#include "receiver_daemon/group/group_place.h"

namespace dws {

// Options to follow a folder of slime's versions instead of senders.
struct FollowOptions {
  std::string slime_dir;   // empty: senders are followed
  std::string checkpoint;  // the local checkpoint that versions are applied to
  uint32_t poll_ms = 500;
  std::string before_read;  // a command; empty: none
  bool before_read_required = false;
  std::string proof = "folder";  // the proof that a delta needs: a name of slime::ProofRule
  // The HTTP server of the engine that loads the checkpoint; no URL: no engine is controlled.
  std::string engine_url;
  std::string engine_kind = "auto";  // "sglang", "vllm"; "auto": detected
  std::string engine_pause_mode;     // empty: the engine's default
  std::string engine_token_file;
  std::string engine_ca;
  bool engine_insecure = false;
  std::string engine_checkpoint;  // the engine's path of `checkpoint`; empty: the same
  uint32_t load_timeout_seconds = 600;
};

// The most places that --shared-dir names.
inline constexpr size_t kSharedBasesMax = 8;

// --shared-dir and its companions.
struct SharedSideOptions {
  std::string root;  // or several, as bases() splits it; empty: none
  std::string key_file;
  uint32_t ranks = 1;  // trainer ranks, used when there are no connections to senders
  uint32_t poll_ms = limits::kSharedPollDefault.count();
  std::string before_read;  // a command; empty: none
  bool before_read_required = false;
  StoreOptions store;  // of a root that is one

  // Copies of one directory, in the order in which they are asked. A comma separates two where a
  // URL or an absolute path follows it.
  std::vector<std::string> bases() const;
};

// --host-share and its companion.
struct HostShareOptions {
  std::string folder;  // empty: none
  uint64_t bytes_max = limits::kHostShareBytesDefault;
};

// --serve-peers and its companions.
inline constexpr uint64_t kServePeersRateMin = uint64_t{4}
                                               << 20;  // two readers would give up below
struct ServePeersOptions {
  std::string listen;             // empty: serves no other receivers, and reads none
  std::string address;            // where others reach it; empty: `listen`
  uint64_t bytes_per_second = 0;  // at most, and at least kServePeersRateMin; 0: no limit
};

// A plain value. The flags set it; CheckOptions checks it. `listen` is for operators and the
// members of a group.
struct ReceiverOptions : DaemonOptions {
  std::string receiver_id;
  std::vector<std::string> senders;  // as CheckPeerAddress accepts
  std::string state_dir = "/var/lib/dws/receiver";
  bool quarantine_damaged_ledger = false;
  uint64_t staging_bytes = limits::kStagingBytesDefault;
  uint64_t scrub_bytes_per_second = limits::kScrubBytesPerSecondDefault;  // cap; 0: no scrub
  uint32_t scrub_pass_seconds = limits::kScrubPassDefault.count();
  uint32_t stale_after_seconds = limits::kStaleAfterDefault.count();
  bool stale_keeps_ready = false;
  CommitPolicy commit_policy;  // of a group's leader: for all; on its members and followers: none
  size_t threads = 1;          // besides the worker
  ProfileChoice profile = ProfileChoice::kAuto;
  std::optional<bool> early_deltas;     // none: from senders of other hosts
  std::optional<std::string> full_way;  // the only source of full tensors, by name; none: all
  std::string view;                     // that is followed; empty: the trainer's own tensors
  FabricChoice fabric;
  std::string tls_server_name;  // expected in senders' certificates; empty: the dialled host
  SharedSideOptions shared_dir;
  HostShareOptions host_share;
  ServePeersOptions serve_peers;
  GroupPlace group;
  FollowOptions follow;
  BroadcastOptions broadcasts;
  uint32_t gpu_duty_percent = 100;  // of a GPU's time, for work while the engine computes
  ByteSpan gpu_kernels;             // kernel_image.h; empty: engines in host memory only

  StaleRule stale() const {
    return {.after = std::chrono::seconds(stale_after_seconds), .keeps_ready = stale_keeps_ready};
  }
};

// Another daemon that the receiver dials over TCP without TLS.
struct PlainPeer {
  std::string_view option;  // "sender"
  std::string address;
};
std::vector<PlainPeer> PlainPeers(const ReceiverOptions& options);
// Returns the same peers as text: "--sender 10.0.0.5:7700".
std::vector<std::string> PlainPeerNames(const ReceiverOptions& options);
// FAILED_PRECONDITION unless --insecure is given; the message says what to do.
Status CheckPlainPeer(const ReceiverOptions& options, const PlainPeer& peer);

// A mistake in an option, for a message that begins with its name.
struct OptionMistake {
  std::string_view option;
  std::string message;
};
// Returns the mistakes in --serve-peers, --peer-address and what they exclude.
std::vector<OptionMistake> ServePeersMistakes(const ReceiverOptions& options);

// Returns the mistake in --commit-policy together with other options; empty: none.
std::string CommitPolicyMistake(const ReceiverOptions& options);

// INVALID_ARGUMENT or FAILED_PRECONDITION names the flag of a wrong option.
Status CheckOptions(const ReceiverOptions& options);

}  // namespace dws
