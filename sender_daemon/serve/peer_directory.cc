// Addresses come from receivers and go to receivers: one that names a unix socket would make others
// open a file of theirs.
#include "sender_daemon/serve/peer_directory.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/service/peers/peer_address.h"

namespace dws {
namespace {

// A name in DNS has 253 bytes at most; each answer to each reader repeats the address.
constexpr size_t kAddressBytesMax = 270;

}  // namespace

Status PeerDirectory::CheckAddress(const std::string& address) {
  if (address.size() > kAddressBytesMax) {
    return InvalidArgumentError(
        "a receiver that serves others names an address of {} bytes, expected HOST:PORT "
        "(--peer-address) of at most {}",
        address.size(), kAddressBytesMax);
  }
  DWS_RETURN_IF_ERROR(CheckPeerAddress(address, "a receiver that serves others"));
  if (!UnixPathOf(address).has_value()) return OkStatus();
  return InvalidArgumentError(
      "a receiver that serves others names a unix socket, expected HOST:PORT (--peer-address)");
}

void PeerDirectory::Connect(const std::string& receiver_id, ConnectionId connection,
                            std::string address, std::string view) {
  LogInfo("receiver_serves_others", {{"id", receiver_id}, {"address", address}});
  MutexLock lock(mutex_);
  handouts_.Connect(receiver_id, connection, std::move(address), std::move(view));
}

void PeerDirectory::Disconnect(ConnectionId connection) {
  MutexLock lock(mutex_);
  handouts_.Disconnect(connection);
}

void PeerDirectory::OnStaged(ConnectionId connection) {
  MutexLock lock(mutex_);
  handouts_.OnStaged(connection, clock_.Now());
}

void PeerDirectory::OnCommitted(ConnectionId connection, const VersionAt& at) {
  MutexLock lock(mutex_);
  handouts_.OnCommitted(connection, at);
}

void PeerDirectory::OnNack(ConnectionId connection) {
  MutexLock lock(mutex_);
  handouts_.OnNack(connection);
}

void PeerDirectory::OnRead(const std::string& receiver_id, bool done) {
  MutexLock lock(mutex_);
  handouts_.OnRead(receiver_id, done, clock_.Now());
}

Status PeerDirectory::Answer(const v1::PeersRequest& request, const VersionAt& at,
                             WeightVersion newest, bool has_delta, v1::PeersReply& reply) {
  const std::vector<std::string> avoid(request.avoid().begin(), request.avoid().end());
  const std::vector<std::string> without(request.without().begin(), request.without().end());
  const uint64_t other_seconds = request.other_ranks_bytes() / limits::kFetchBytesPerSecondMin;
  const PeerHandouts::Question question{
      .receiver_id = request.receiver_id(),
      .at = at,
      .newest = newest,
      .has_delta = has_delta,
      .begun = request.begun(),
      .avoid = avoid,
      .without = without,
      .other_ranks = other_seconds < ToSeconds(kPeerGrantOtherRanks)
                         ? Duration(std::chrono::seconds(other_seconds))
                         : Duration(kPeerGrantOtherRanks),
      .failed = request.failed(),
      .only_others = request.only_others()};
  std::optional<PeerHandouts::Answer> answer;
  {
    MutexLock lock(mutex_);
    answer = handouts_.Ask(question, clock_.Now());
  }
  if (!answer.has_value()) {
    return UnavailableError("receiver '{}' has no Sync stream here by which it serves others yet",
                            request.receiver_id());
  }
  if (answer->newer.has_value()) {
    return MakeStatus(absl::StatusCode::kOutOfRange,
                      fmt::format("other receivers have version {} by now, in place of {}",
                                  answer->newer->value(), at.version.value()));
  }
  reply.set_address(answer->address);
  reply.set_wait_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(answer->wait).count()));
  return OkStatus();
}

void PeerDirectory::FillStatus(v1::SenderStatus& status) const {
  PeerHandouts::Totals totals;
  {
    MutexLock lock(mutex_);
    totals = handouts_.totals(clock_.Now());
  }
  if (totals.able == 0 && totals.grants == 0) return;
  v1::PeerHandouts& peers = *status.mutable_peers();
  peers.set_able(totals.able);
  peers.set_waiting(totals.waiting);
  peers.set_handed_out(totals.handed_out);
  peers.set_grants(totals.grants);
  peers.set_grants_lost(totals.grants_lost);
}

}  // namespace dws
