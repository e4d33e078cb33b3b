// CheckOptions repeats some checks of the flags, because tests start the daemon without flags.
#include "receiver_daemon/options/receiver_options.h"

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/service/listen_address.h"
#include "common/service/peers/peer_address.h"
#include "common/transport/http_files/http_file_system.h"

namespace dws {

std::vector<std::string> SharedSideOptions::bases() const {
  std::vector<std::string> bases;
  size_t begin = 0;
  for (size_t comma = root.find(','); comma != std::string::npos;
       comma = root.find(',', comma + 1)) {
    const std::string_view next = std::string_view(root).substr(comma + 1);
    if (!next.starts_with('/') && !IsStore(next) && !IsHttpBase(next)) continue;
    bases.push_back(root.substr(begin, comma - begin));
    begin = comma + 1;
  }
  if (!root.empty()) bases.push_back(root.substr(begin));
  return bases;
}

std::vector<PlainPeer> PlainPeers(const ReceiverOptions& options) {
  std::vector<PlainPeer> peers;
  if (options.tls.given()) return peers;
  for (const std::string& sender : options.senders) {
    if (!UnixPathOf(sender).has_value()) peers.push_back({"sender", sender});
  }
  const std::string& leader = options.group.leader_address;
  if (!leader.empty() && !UnixPathOf(leader).has_value()) peers.push_back({"group-leader", leader});
  return peers;
}

std::vector<std::string> PlainPeerNames(const ReceiverOptions& options) {
  std::vector<std::string> names;
  for (const PlainPeer& peer : PlainPeers(options)) {
    names.push_back(fmt::format("--{} {}", peer.option, peer.address));
  }
  if (!options.serve_peers.listen.empty() && !options.tls.given()) {
    names.push_back(fmt::format("--serve-peers {}", options.serve_peers.listen));
  }
  return names;
}

Status CheckPlainPeer(const ReceiverOptions& options, const PlainPeer& peer) {
  DWS_CHECK(!options.tls.given());  // with TLS there are no PlainPeers
  if (options.insecure) return OkStatus();
  return PlainPeerError(fmt::format("--{} {}", peer.option, peer.address),
                        "give this engine weights");
}

std::vector<OptionMistake> ServePeersMistakes(const ReceiverOptions& options) {
  const ServePeersOptions& serve = options.serve_peers;
  std::vector<OptionMistake> mistakes;
  if (serve.listen.empty()) {
    if (!serve.address.empty() || serve.bytes_per_second > 0) {
      mistakes.push_back({"serve-peers", "not given: its address and rate have no effect"});
    }
    return mistakes;
  }
  const Result<ListenAddress> listen = ParseListenAddress(serve.listen);
  if (!listen.ok()) {
    mistakes.push_back({"serve-peers", std::string(Message(listen.status()))});
    return mistakes;
  }
  const bool secured = options.insecure || options.tls.given();
  if (const Status plain = CheckPlainListener(*listen, secured); !plain.ok()) {
    mistakes.push_back({"serve-peers", std::string(Message(plain))});
  }
  if (serve.address.empty()) {
    if (listen->host == "0.0.0.0" || listen->host == "::") {
      mistakes.push_back(
          {"peer-address", fmt::format("expected the address by which others reach this host, "
                                       "because serve-peers {} names none",
                                       serve.listen)});
    }
  } else if (const Status address = CheckPeerAddress(serve.address, "this receiver");
             !address.ok() || UnixPathOf(serve.address).has_value()) {
    mistakes.push_back(
        {"peer-address", fmt::format("'{}' is not HOST:PORT", EscapeUnprintable(serve.address))});
  }
  if (serve.bytes_per_second > 0 && serve.bytes_per_second < kServePeersRateMin) {
    mistakes.push_back(
        {"serve-peers-rate", fmt::format("{} bytes a second, expected at least {}: others would "
                                         "take this receiver for one that hangs",
                                         serve.bytes_per_second, kServePeersRateMin)});
  }
  if (options.senders.empty()) {
    mistakes.push_back({"serve-peers", "there is no sender, which tells receivers of each other"});
  }
  if (!options.group.group_id.empty()) {
    mistakes.push_back({"serve-peers",
                        "given beside group-id: members of a commit group commit together, so one "
                        "cannot wait until another has committed"});
  }
  return mistakes;
}

std::string CommitPolicyMistake(const ReceiverOptions& options) {
  if (!options.commit_policy.holds()) return "";
  if (!options.follow.slime_dir.empty()) {
    return fmt::format("{} is given beside slime-dir: a follower commits nothing, its engine loads",
                       ToString(options.commit_policy));
  }
  if (options.group.index == 0) return "";
  return fmt::format(
      "{} is given to member {} of group '{}': expected only on its leader (group-index 0), which "
      "decides for all members",
      ToString(options.commit_policy), options.group.index, options.group.group_id);
}

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
        "--slime-dir needs --checkpoint, the local one to apply versions to, and excludes --sender "
        "and --shared-dir");
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
  if (!options.host_share.folder.empty() && options.senders.empty()) {
    return InvalidArgumentError("--host-share needs --sender: it shares what is fetched from them");
  }
  if (const std::string mistake = CommitPolicyMistake(options); !mistake.empty()) {
    return InvalidArgumentError("--commit-policy: {}", mistake);
  }
  if (const auto wrong = ServePeersMistakes(options); !wrong.empty()) {
    return InvalidArgumentError("--{}: {}", wrong.front().option, wrong.front().message);
  }
  for (const PlainPeer& peer : PlainPeers(options)) {
    DWS_RETURN_IF_ERROR(CheckPlainPeer(options, peer));
  }
  const auto mistakes = GroupMistakes(options.group);
  if (mistakes.empty()) return OkStatus();
  return InvalidArgumentError("--{}: {}", mistakes.front().option, mistakes.front().message);
}

}  // namespace dws
