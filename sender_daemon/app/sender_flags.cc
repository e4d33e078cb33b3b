#include "sender_daemon/app/sender_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/model/identity_limits.h"
#include "common/model/limits.h"
#include "common/service/peers/peer_address.h"
#include "common/service/program/daemon_flags.h"
#include "common/sync_state/presence_limits.h"
#include "sender_daemon/shared/shared_sink.h"
#include "sender_daemon/slime/slime_sink.h"

namespace dws {

std::vector<std::string> PlainTrainPeers(const SenderOptions& options) {
  std::vector<std::string> plain;
  for (size_t rank = 0; rank < options.train_peers.size(); ++rank) {
    const std::string& peer = options.train_peers[rank];
    const bool other = rank != options.trainer_rank && !UnixPathOf(peer).has_value();
    if (other && !options.tls.given()) plain.push_back("--train-peers " + peer);
  }
  return plain;
}

namespace {

void AddTransferFlags(CLI::App& app, SenderOptions& options) {
  AddSizeFlag(app, "--egress-limit", options.egress_bytes_per_second,
              "Bytes a second to all receivers over TCP together, as 1250MiB; 0: no limit",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
  app.add_flag(
      "--huge-pages", options.huge_pages,
      "Keep the snapshot in reserved huge pages of 2 MiB, if vm.nr_hugepages leaves enough");
}

void AddFabricFlag(CLI::App& app, FabricChoice& fabric) {
  app.add_option_function<std::string>(
         "--fabric",
         [&fabric](const std::string& choice) {
           DWS_CHECK(ParseFabricChoice(choice, fabric));  // the check below has passed
         },
         "Lend the snapshot to receivers over libfabric: by this provider, or by verbs or efa "
         "where there is an adapter (auto); none encrypts")
      ->check(CLI::IsMember({"off", "auto", "verbs", "efa", "tcp"}).description(""))
      ->type_name("off|auto|verbs|efa|tcp")
      ->default_str("off");
}

// The folders that versions are also published to.
void AddFolderFlags(CLI::App& app, SenderOptions& options) {
  app.add_option_function<int64_t>(
         "--folder-stale-after",
         [&options](int64_t seconds) {
           options.folder_stale_after = std::chrono::seconds(seconds);
         },
         "Seconds for which writing to --shared-dir or --slime-dir may fail before the sender is "
         "not ready; 0: it stays ready, status and metrics report it")
      ->type_name("SECONDS")
      ->check(CLI::Range(int64_t{0}, int64_t{limits::kStaleAfterMax.count()}))
      ->default_str(fmt::to_string(limits::kStaleAfterDefault.count()));
  AddSharedFlags(app, options.shared_dir);
  AddSlimeFlags(app, options.slime_dir);
}

void AddBroadcastFlags(CLI::App& app, SenderOptions& options) {
  app.add_option_function<std::string>(
         "--nccl",
         [&options](const std::string& choice) { options.broadcasts.wanted = choice == "auto"; },
         "Broadcast versions to receivers by NCCL where libnccl and a GPU are (auto), or not (off)")
      ->check(CLI::IsMember({"off", "auto"}).description(""))
      ->type_name("off|auto")
      ->default_str("off");
  app.add_option_function<double>(
         "--nccl-timeout",
         [&options](double seconds) {
           options.broadcast_timeout =
               std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
         },
         "Seconds for receivers to join broadcasts, or to take a small version")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, ToSeconds(limits::kBroadcastTimeoutMax)))
      ->default_str(fmt::to_string(limits::kBroadcastTimeoutDefault.count()));
  app.add_option("--gpu", options.broadcasts.gpu,
                 "The device for broadcasts, by UUID or number (default: the only one)")
      ->type_name("GPU");
}

void AddTrainFlags(CLI::App& app, SenderOptions& options) {
  app.add_option(
         "--train-peers", options.train_peers,
         "Addresses of the senders of all trainer ranks, by rank, this one's too (HOST:PORT "
         "or unix:PATH): to train on demand, and for views with one scale a matrix")
      ->type_name("ADDRESS,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option_function<int64_t>(
         "--train-peer-timeout",
         [&options](int64_t seconds) {
           options.train_peer_timeout = std::chrono::seconds(seconds);
         },
         "Seconds of silence after which another rank's sender counts as lost, and its minibatch "
         "is abandoned")
      ->type_name("SECONDS")
      ->check(CLI::Range(int64_t{1}, int64_t{limits::kTrainPeerTimeoutMax.count()}))
      ->default_str(fmt::to_string(limits::kTrainPeerTimeoutDefault.count()));
  AddSizeFlag(app, "--object-bytes", options.object_bytes,
              "Cap on what the rank of a sender with --train-peers puts there for other ranks "
              "(PULSELoCo), in bytes or as 4GiB; 0: they exchange no objects",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
  app.add_option("--host-id", options.host_id,
                 "What host this sender says it is on: those with different ones map no memory of "
                 "each other (default: the kernel's boot id)")
      ->type_name("ID");
  AddSizeFlag(app, "--host-cache-bytes", options.host_cache_bytes,
              "Weights of other hosts' ranks that this sender keeps for the ranks of its host, so "
              "that each is fetched once a host and version, in bytes or as 64GiB; 0: none",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
  AddSizeFlag(app, "--host-accumulate-bytes", options.host_accumulate_bytes,
              "Memory of this sender for sums of the gradients that the ranks of its host push to "
              "ranks of other hosts, so that each sum leaves once a minibatch, in bytes or as "
              "64GiB; 0: none",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
}

void FinishTrainFlags(Config& config, const SenderOptions& options) {
  const std::vector<std::string>& peers = options.train_peers;
  if (!peers.empty() && options.trainer_rank >= peers.size()) {
    config.Reject("train-peers", fmt::format("it names {} senders, and this one is of rank {}",
                                             peers.size(), options.trainer_rank));
  }
  for (auto peer = peers.begin(); peer != peers.end(); ++peer) {
    if (std::find(peers.begin(), peer, *peer) == peer) continue;
    config.Reject("train-peers",
                  fmt::format("it names {} twice: expected another sender for each rank", *peer));
  }
  if (options.insecure) return;
  for (const std::string& peer : PlainTrainPeers(options)) {
    config.Reject("train-peers", Message(PlainPeerError(peer, "speak for that rank")));
  }
}

}  // namespace

void AddSenderFlags(CLI::App& app, SenderOptions& options) {
  options.threads = std::max(1U, std::thread::hardware_concurrency());
  AddIdFlag(app, "--job-id", options.job_id, "Job that trainer, senders and receivers share");
  app.add_option("--trainer-rank", options.trainer_rank, "Rank of the trainer beside this sender")
      ->check(CLI::Range(uint32_t{0}, limits::kWorldSizeMax - 1))
      ->capture_default_str();
  app.add_option("--socket", options.socket,
                 "Unix socket for the trainer and for receivers of this host (default "
                 "/run/dws/sender-RANK.sock); descriptors go over SOCKET.handles")
      ->type_name("PATH");
  AddListenFlag(app, "--listen", options.listen,
                "Where receivers of other hosts connect (default: nowhere); port 0 picks one");
  AddListenFlag(
      app, "--http", options.http,
      "a page for people at /, /healthz, /readyz, /status and /metrics (default: nowhere); port 0 "
      "picks one");
  app.add_option("--state-dir", options.state_folder,
                 "Folder of the version ledger (default /var/lib/dws/sender-RANK)")
      ->type_name("PATH");
  AddQuarantineFlag(app, options.quarantine_damaged_ledger);
  app.add_option("--ports-file", options.ports_file, "Write the bound ports to this file as JSON")
      ->type_name("PATH");
  AddSizeFlag(app, "--retain-bytes", options.retain_bytes,
              "Cap on retained deltas, in bytes or as 4GiB",
              {.bytes_min = 0, .bytes_max = limits::kRegionBytesMax});
  app.add_option("--retain-versions", options.retain_versions,
                 "Cap on retained deltas, in versions")
      ->check(CLI::Range(size_t{1}, limits::kRetainedVersionsMax))
      ->capture_default_str();
  AddTransferFlags(app, options);
  app.add_option_function<int64_t>(
         "--laggard-after",
         [&options](int64_t seconds) { options.laggard_after = std::chrono::seconds(seconds); },
         "Seconds without a commit, while other receivers commit, until the trainer's wait for all "
         "leaves a receiver out; 0: never")
      ->type_name("SECONDS")
      ->check(CLI::Range(int64_t{0}, int64_t{limits::kLaggardAfterMax.count()}))
      ->default_str(fmt::to_string(limits::kLaggardAfterDefault.count()));
  AddProfileFlag(app, options.profile,
                 "Links for which deltas are also encoded: slow links (wan), the fastest (direct), "
                 "neither (fast), what a receiver asks for (auto)");
  app.add_option("--threads", options.threads, "Threads that capture weights (default: all cores)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--insecure", options.insecure,
               "Allow TCP without TLS: --listen anywhere, --train-peers, --http beyond loopback");
  AddSecurityFlags(app, options.tls, options.allow_users);
  {
    const TierOfFlags supported(app, Tier::kSupported);
    AddFolderFlags(app, options);
  }
  const TierOfFlags experimental(app, Tier::kExperimental);
  AddFabricFlag(app, options.fabric);
  AddBroadcastFlags(app, options);
  AddTrainFlags(app, options);
}

void FinishSenderFlags(Config& config, SenderOptions& options) {
  // The rank is in both paths, so that several senders can run on one host.
  config.Derive("socket", fmt::format("/run/dws/sender-{}.sock", options.trainer_rank));
  config.Derive("state-dir", fmt::format("/var/lib/dws/sender-{}", options.trainer_rank));
  RejectExposure(config, options.listen, options.http, options.insecure || options.tls.given());
  RejectTlsInPart(config, options.tls);
  if (options.fabric.on && options.listen.empty()) {
    config.Reject("fabric", "it needs --listen, whose address is the fabric's too");
  }
  if (options.fabric.on && options.egress_bytes_per_second > 0) {
    config.Reject("fabric", "receivers read by themselves, which --egress-limit cannot hold");
  }
  FinishTrainFlags(config, options);
  FinishSharedFlags(config, options.shared_dir, options.profile, options.insecure);
  FinishSlimeFlags(config, options.slime_dir);
  const size_t views = KeptViews(options).size();
  if (!options.slime_dir.view.empty() && views > limits::kViewsFollowedMax) {
    config.Reject("slime-view",
                  fmt::format("{} views with those of --shared-view, at most {} are supported",
                              views, limits::kViewsFollowedMax));
  }
}

}  // namespace dws
