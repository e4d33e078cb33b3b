#include "receiver_daemon/options/receiver_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/model/host_limits.h"
#include "common/model/limits.h"
#include "common/quantise/view.h"
#include "common/service/peers/peer_address.h"
#include "common/service/program/daemon_flags.h"
#include "common/service/program/store_flags.h"
#include "common/sync_state/presence_limits.h"
#include "common/transport/shared_fs/visibility_hook.h"

namespace dws {
namespace {

// How often to look at a folder.
CLI::Range PollRange() {
  return {uint32_t{limits::kSharedPollMin.count()},
          uint32_t{std::chrono::milliseconds(limits::kSharedPollMax).count()}};
}

std::string CheckSender(const std::string& text) {
  return std::string(Message(CheckPeerAddress(text, "a sender")));
}
std::string CheckLeader(const std::string& text) {
  return text.empty() ? "" : std::string(Message(CheckPeerAddress(text, "the group's leader")));
}

// A group's id, or none.
std::string CheckGroupId(const std::string& text) {
  if (text.size() <= limits::kIdBytesMax) return UnprintableIn(text);
  return fmt::format("{} bytes, expected at most {}", text.size(), limits::kIdBytesMax);
}

void AddGroupFlags(CLI::App& app, GroupPlace& group) {
  app.add_option("--group-id", group.group_id,
                 "Commit group of receivers that serve one engine together; empty: none")
      ->type_name("ID")
      ->check(CLI::Validator(CheckGroupId, "", "group"));
  app.add_option("--group-index", group.index,
                 "This receiver's place in its group; 0: it leads, and serves engine rank 0")
      ->check(CLI::Range(0U, limits::kGroupMembersMax - 1))
      ->capture_default_str();
  app.add_option("--group-members", group.member_count,
                 "How many receivers the group has, the leader included")
      ->check(CLI::Range(0U, limits::kGroupMembersMax))
      ->capture_default_str();
  app.add_option("--group-leader", group.leader_address,
                 "The leader's --listen, as others reach it, or its --socket on one host; the "
                 "leader needs none")
      ->type_name("HOST:PORT|unix:PATH")
      ->check(CLI::Validator(CheckLeader, "", "leader"));
}

void AddFollowFlags(CLI::App& app, FollowOptions& follow) {
  app.add_option("--slime-dir", follow.slime_dir,
                 "Follow this folder of slime's versions (weight_vNNNNNN) instead of senders")
      ->type_name("PATH");
  app.add_option("--checkpoint", follow.checkpoint,
                 "With --slime-dir: the local checkpoint that versions are applied to, in place")
      ->type_name("PATH");
  app.add_option("--slime-poll-ms", follow.poll_ms, "How often to look for a version, milliseconds")
      ->check(PollRange())
      ->capture_default_str();
  app.add_option("--slime-before-read", follow.before_read,
                 "Command to run before each look at --slime-dir (DWS_SHARED_DIR and DWS_VERSION "
                 "are set)")
      ->type_name("COMMAND")
      ->check(CLI::Validator(shared::WhyNoCommand, "", "command"));
  app.add_flag("--slime-before-read-required", follow.before_read_required,
               "While that command fails, take no version");
  app.add_option("--slime-proof", follow.proof,
                 "Required proof that a delta there belongs to the applied run: a dws-sender's "
                 "stream or the checksums of all tensors (content); or the applied version beside "
                 "it (folder); or nothing (none)")
      ->check(CLI::IsMember({"content", "folder", "none"}).description(""))
      ->type_name("content|folder|none")
      ->capture_default_str();
  app.add_option("--engine-url", follow.engine_url,
                 "With --slime-dir: the HTTP server of the engine that loads the checkpoint")
      ->type_name("URL");
  app.add_option("--engine-kind", follow.engine_kind, "Kind of that engine; auto: ask the engine")
      ->check(CLI::IsMember({"auto", "sglang", "vllm"}).description(""))
      ->type_name("auto|sglang|vllm")
      ->capture_default_str();
  app.add_option(
         "--engine-pause-mode", follow.engine_pause_mode,
         "How it pauses: retract, abort, in_place (SGLang), keep, wait, abort (vLLM); the first "
         "is the default")
      ->type_name("MODE");
  app.add_option("--engine-token-file", follow.engine_token_file,
                 "File with the bearer token it asks for")
      ->type_name("PATH");
  app.add_option("--engine-ca", follow.engine_ca,
                 "For https: CA of its certificate (default: those this machine trusts)")
      ->type_name("PATH");
  app.add_flag("--engine-insecure", follow.engine_insecure,
               "Allow the token to travel to another machine without TLS");
  app.add_option("--engine-checkpoint", follow.engine_checkpoint,
                 "Path of the checkpoint for the engine (default: --checkpoint)")
      ->type_name("PATH");
  app.add_option("--engine-load-timeout", follow.load_timeout_seconds,
                 "How long it may take to pause, and to load, seconds")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
}

void AddSharedFlags(CLI::App& app, SharedSideOptions& dir) {
  app.add_option("--shared-dir", dir.root,
                 "Directory on a shared filesystem, in an S3-compatible store, or of an HTTP "
                 "server, where senders publish: instead of --sender, or for the bytes of what is "
                 "announced there; or several copies of it, separated by commas, each for what "
                 "those before it do not bring")
      ->type_name("PATH|s3://BUCKET/PREFIX|https://HOST/PATH,...");
  AddStoreFlags(app, dir.store);
  app.add_option(
         "--shared-dir-key", dir.key_file,
         "File with the key that the files there are signed with; the senders have the same")
      ->type_name("PATH");
  app.add_option("--shared-ranks", dir.ranks,
                 "Trainer ranks that publish in --shared-dir; with --sender as many as those")
      ->check(CLI::Range(uint32_t{1}, limits::kWorldSizeMax))
      ->capture_default_str();
  app.add_option("--shared-poll-ms", dir.poll_ms, "How often to look at --shared-dir, milliseconds")
      ->check(PollRange())
      ->capture_default_str();
  app.add_option("--shared-before-read", dir.before_read,
                 "Command to run before each look at --shared-dir (DWS_SHARED_DIR and DWS_VERSION "
                 "are set)")
      ->type_name("COMMAND")
      ->check(CLI::Validator(shared::WhyNoCommand, "", "command"));
  app.add_flag("--shared-before-read-required", dir.before_read_required,
               "While that command fails, read nothing from --shared-dir");
}

void AddHostShareFlags(CLI::App& app, HostShareOptions& share) {
  app.add_option("--host-share", share.folder,
                 "Private folder, best on a tmpfs, in which receivers of this host and user leave "
                 "deltas for each other: one of them fetches each")
      ->type_name("PATH");
  AddSizeFlag(app, "--host-share-bytes", share.bytes_max,
              "The most bytes that may be there, the oldest are removed; the same for all of them",
              {.bytes_min = limits::kHostShareBytesMin, .bytes_max = limits::kRegionBytesMax});
}

void AddServePeersFlags(CLI::App& app, ServePeersOptions& serve) {
  AddListenFlag(
      app, "--serve-peers", serve.listen,
      "Where other receivers of the job read full tensors from this engine's memory; this "
      "receiver then also reads from them (default: nowhere, and it does not); port 0 "
      "picks one");
  app.add_option("--peer-address", serve.address,
                 "How other hosts reach --serve-peers, where that is not its own address")
      ->type_name("HOST:PORT");
  AddSizeFlag(app, "--serve-peers-rate", serve.bytes_per_second,
              "Bytes to send to other receivers, at most each second; 0: no limit",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
}

void AddStaleFlags(CLI::App& app, ReceiverOptions& options) {
  app.add_option(
         "--stale-after", options.stale_after_seconds,
         "Seconds without an accepted sender of each trainer rank, or in which every version "
         "that was tried failed, or without a look at --slime-dir that succeeds and finds no "
         "incomplete version, after which the engine counts as stale: not ready")
      ->check(CLI::Range(int64_t{1}, limits::kStaleAfterMax.count()))
      ->capture_default_str();
  app.add_flag("--stale-keeps-ready", options.stale_keeps_ready,
               "An engine that is stale stays ready: /readyz is 200, status and metrics report it");
}

// A CLI11 validator: returns what is wrong, or "".
std::string NoCommitPolicy(const std::string& text) {
  return std::string(Message(ParseCommitPolicy(text).status()));
}

void AddCommitPolicyFlag(CLI::App& app, CommitPolicy& policy) {
  app.add_option_function<std::string>(
         "--commit-policy",
         [&policy](const std::string& text) { policy = *ParseCommitPolicy(text); },
         "When a staged version is committed: at once; only at boundaries that the engine names "
         "(Engine.boundary, dwsctl commit); there, but never more than K versions behind. In a "
         "group: of the leader, for all members")
      ->check(CLI::Validator(NoCommitPolicy, "", "policy"))
      ->type_name("immediate|boundary|max-behind:K")
      ->default_str(ToString(policy));
}

void AddScrubFlags(CLI::App& app, ReceiverOptions& options) {
  AddSizeFlag(app, "--scrub-rate", options.scrub_bytes_per_second,
              "Live memory to read again and compare with the published digests, at most each "
              "second; 0: none",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
  app.add_option("--scrub-pass", options.scrub_pass_seconds,
                 "Seconds within which all live memory is to be read again, as far as --scrub-rate "
                 "allows")
      ->check(CLI::Range(int64_t{1}, limits::kScrubPassMax.count()))
      ->capture_default_str();
}

void AddViewFlag(CLI::App& app, ReceiverOptions& options) {
  app.add_option("--view", options.view,
                 "Tensors that the engine holds in place of the trainer's BF16 tensors: a recipe, "
                 "and the tensors that it leaves unchanged, as in "
                 "fp8-block128/deepseek,except=lm_head.weight,except=*.gate.weight")
      ->type_name("RECIPE[,except=PATTERN...]");
}

void AddTransferFlags(CLI::App& app, ReceiverOptions& options) {
  app.add_option_function<std::string>(
         "--early-deltas",
         [&options](const std::string& choice) {
           options.early_deltas =
               choice == "auto" ? std::nullopt : std::optional(choice == "always");
         },
         "Fetch and stage deltas while senders still capture them (always), or when they are "
         "published (never); by auto the former from other hosts alone, as on this host it would "
         "take cores from the capture")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->type_name("auto|always|never")
      ->default_str("auto");
  app.add_option_function<std::string>(
         "--full-way",
         [&options](const std::string& way) {
           options.full_way = way == "auto" ? std::nullopt : std::optional(way);
         },
         "Way of full tensors: from GPU to GPU of this host (device), from the memory of a sender "
         "on this host, by --fabric, from other receivers (peer), over the sender's connection, or "
         "the best of these that works (auto); a version fails if the named way does not bring "
         "every byte of it")
      ->check(
          CLI::IsMember({"auto", "device", "same-host", "fabric", "peer", "grpc"}).description(""))
      ->type_name("auto|device|same-host|fabric|peer|grpc")
      ->default_str("auto");
}

void AddFabricFlag(CLI::App& app, FabricChoice& fabric) {
  app.add_option_function<std::string>(
         "--fabric",
         [&fabric](const std::string& choice) {
           DWS_CHECK(ParseFabricChoice(choice, fabric));  // the check below has passed
         },
         "Read full tensors over libfabric from senders that lend them: by this provider, or by "
         "any (auto); none encrypts")
      ->check(CLI::IsMember({"off", "auto", "verbs", "efa", "tcp"}).description(""))
      ->type_name("off|auto|verbs|efa|tcp")
      ->default_str("off");
}

void AddBroadcastFlags(CLI::App& app, BroadcastOptions& broadcasts) {
  app.add_option_function<std::string>(
         "--nccl",
         [&broadcasts](const std::string& choice) { broadcasts.wanted = choice == "auto"; },
         "Take versions from senders' NCCL broadcasts where libnccl and a GPU are (auto), or not "
         "(off)")
      ->check(CLI::IsMember({"off", "auto"}).description(""))
      ->type_name("off|auto")
      ->default_str("off");
  app.add_option("--gpu", broadcasts.gpu,
                 "The device for broadcasts, by UUID or number (default: the only one)")
      ->type_name("GPU");
}

void FinishSharedDirFlags(Config& config, const ReceiverOptions& options) {
  const std::vector<std::string> bases = options.shared_dir.bases();
  if (bases.size() > kSharedBasesMax) {
    config.Reject("shared-dir", fmt::format("{} places are given, at most {} are asked",
                                            bases.size(), kSharedBasesMax));
  }
  FinishStoreFlags(config, bases, options.shared_dir.store, options.insecure);
}

// What receivers give each other.
void FinishSharingFlags(Config& config, const ReceiverOptions& options) {
  if (!options.host_share.folder.empty() && options.senders.empty()) {
    config.Reject("host-share", "there is no sender: it shares what is fetched from them");
  }
  if (options.full_way == "peer" && options.serve_peers.listen.empty()) {
    config.Reject("full-way", "peer is off: give --serve-peers");
  }
  for (const OptionMistake& mistake : ServePeersMistakes(options)) {
    config.Reject(mistake.option, mistake.message);
  }
}

}  // namespace

void AddReceiverFlags(CLI::App& app, ReceiverOptions& options) {
  AddIdFlag(app, "--job-id", options.job_id, "The job; the senders' must be the same")->required();
  AddIdFlag(app, "--receiver-id", options.receiver_id,
            "Stable name of this receiver, unique in the job")
      ->required();
  app.add_option("--sender", options.senders,
                 "A sender: on this host unix: and its --socket, else its --listen; once for each "
                 "trainer rank")
      ->type_name("HOST:PORT|unix:PATH")
      ->check(CLI::Validator(CheckSender, "", "peer"));
  app.add_option("--socket", options.socket,
                 "Unix socket for engines; <socket>.handles is beside it")
      ->type_name("PATH")
      ->capture_default_str();
  AddListenFlag(app, "--listen", options.listen,
                "Where operators and a group's members of other hosts connect (default: nowhere); "
                "port 0 picks one");
  AddListenFlag(
      app, "--http", options.http,
      "a page for people at /, /healthz, /readyz, /status and /metrics (default: nowhere); port 0 "
      "picks one");
  app.add_option("--state-dir", options.state_dir, "Folder of the ledger and of spooled transfers")
      ->type_name("PATH")
      ->capture_default_str();
  AddQuarantineFlag(app, options.quarantine_damaged_ledger);
  AddSizeFlag(app, "--staging-bytes", options.staging_bytes,
              "Memory for transfers and staged writes together, in bytes or as 256MiB",
              {.bytes_min = limits::kStagingBytesMin, .bytes_max = limits::kRegionBytesMax});
  AddScrubFlags(app, options);
  AddStaleFlags(app, options);
  AddCommitPolicyFlag(app, options.commit_policy);
  app.add_option("--threads", options.threads, "Threads that stage and digest, besides the worker")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--gpu-duty", options.gpu_duty_percent,
                 "Percent of a GPU's time that staging and verification may take beside the engine")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  AddProfileFlag(
      app, options.profile,
      "Deltas to ask for: the smallest (wan), small and cheap to apply (fast), nothing dense to "
      "decode (direct), by the speed of the link (auto)");
  AddTransferFlags(app, options);
  app.add_option("--ports-file", options.ports_file, "Write the bound ports to this file as JSON")
      ->type_name("PATH");
  app.add_flag("--insecure", options.insecure,
               "Allow TCP without TLS: --listen, --sender and --group-leader anywhere, --http "
               "beyond loopback");
  AddSecurityFlags(app, options.tls, options.allow_users);
  app.add_option("--tls-server-name", options.tls_server_name,
                 "Name in the senders' certificates, where it is not the host that is dialled")
      ->type_name("NAME");
  AddFollowFlags(app, options.follow);
  {
    const TierOfFlags supported(app, Tier::kSupported);
    AddViewFlag(app, options);
    AddGroupFlags(app, options.group);
    AddSharedFlags(app, options.shared_dir);
    AddHostShareFlags(app, options.host_share);
    AddServePeersFlags(app, options.serve_peers);
  }
  const TierOfFlags experimental(app, Tier::kExperimental);
  AddFabricFlag(app, options.fabric);
  AddBroadcastFlags(app, options.broadcasts);
}

void FinishReceiverFlags(Config& config, const ReceiverOptions& options) {
  RejectExposure(config, options.listen, options.http, options.insecure || options.tls.given());
  for (const PlainPeer& peer : PlainPeers(options)) {
    const Status status = CheckPlainPeer(options, peer);
    if (!status.ok()) config.Reject(peer.option, Message(status));
  }
  RejectTlsInPart(config, options.tls);
  const bool follows = !options.follow.slime_dir.empty();
  const bool shared = !options.shared_dir.root.empty();
  if (follows && (shared || !options.senders.empty())) {
    config.Reject("slime-dir",
                  "given beside sender or shared-dir: a receiver follows a folder or senders");
  }
  if (!options.view.empty()) {
    if (const Status known = quantise::ParseView(options.view).status(); !known.ok()) {
      config.Reject("view", Message(known));
    } else if (follows) {
      config.Reject("view",
                    "given beside slime-dir, where a receiver applies what the folder has: "
                    "start the senders that write it with --slime-view, and give no view here");
    }
  }
  if (options.full_way == "fabric" && !options.fabric.on) {
    config.Reject("full-way", "fabric is off: give --fabric");
  }
  if (options.full_way.has_value() && options.senders.empty()) {
    config.Reject("full-way", "there is no sender: full tensors come from a directory");
  }
  FinishSharingFlags(config, options);
  FinishSharedDirFlags(config, options);
  if (!shared && !options.shared_dir.before_read.empty()) {
    config.Reject("shared-before-read", "there is no shared-dir to look at");
  }
  if (options.shared_dir.before_read_required && options.shared_dir.before_read.empty()) {
    config.Reject("shared-before-read-required", "there is no shared-before-read");
  }
  if (!follows && !options.follow.before_read.empty()) {
    config.Reject("slime-before-read", "there is no slime-dir to look at");
  }
  if (options.follow.before_read_required && options.follow.before_read.empty()) {
    config.Reject("slime-before-read-required", "there is no slime-before-read");
  }
  if (follows && options.follow.checkpoint.empty()) {
    config.Reject("checkpoint", "expected the local checkpoint that versions are applied to");
  }
  if (!follows && !shared && options.senders.empty()) {
    config.Reject("sender", "expected one for each trainer rank, or shared-dir, or slime-dir");
  }
  if (!follows && !(options.follow.checkpoint.empty() && options.follow.engine_url.empty())) {
    config.Reject("slime-dir", "checkpoint and engine-url work only with it");
  }
  std::set<std::string> senders;
  for (const std::string& sender : options.senders) {
    if (senders.insert(sender).second) continue;
    config.Reject("sender", fmt::format("'{}' is given twice, expected each sender once: each "
                                        "trainer rank has one, with its own address",
                                        EscapeUnprintable(sender)));
    break;
  }
  if (options.senders.size() > limits::kSendersMax) {
    config.Reject("sender", fmt::format("given {} times, expected at most {}",
                                        options.senders.size(), limits::kSendersMax));
  }
  if (const std::string mistake = CommitPolicyMistake(options); !mistake.empty()) {
    config.Reject("commit-policy", mistake);
  }
  for (const GroupMistake& mistake : GroupMistakes(options.group)) {
    config.Reject(mistake.option, mistake.message);
  }
}

}  // namespace dws
