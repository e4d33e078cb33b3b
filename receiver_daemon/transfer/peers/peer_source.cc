// 1. ask the sender of trainer rank 0 whom to read from: wait, read from the senders, or an address
// 2. read from there, a part at a time, so that a slow receiver is noticed, and ask again soon
// 3. compare each slice when it is complete; if it is wrong, all that may have brought a part of it
//    are left out
#include "receiver_daemon/transfer/peers/peer_source.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/peers/peer_address.h"
#include "common/sync_state/peer_handouts.h"

namespace dws {
namespace {

constexpr size_t kChannelsMax = 16;  // that are kept open
constexpr int kBadPeersMax = 16;     // of one transfer; then the senders are read
// One call asks for so much. It has kPartGrace and the time that the slowest useful link takes.
constexpr uint64_t kPartBytes = uint64_t{16} << 20;
constexpr uint64_t kBytesPerSecondMin = uint64_t{2} << 20;
constexpr std::chrono::seconds kPartGrace{2};
// After so long the sender is asked again: well before kPeerReadLease.
constexpr std::chrono::seconds kReadFor{3};
// One that served badly is left out for so long; one with another version until the sender knows.
constexpr std::chrono::seconds kBadFor{60};
constexpr std::chrono::seconds kOtherVersionFor{2};

// The wait for others and the reads from them together.
Duration TransferTime(const FullAssembly& assembly) {
  return limits::kRpcDeadline +
         std::chrono::seconds(MissingBytes(assembly) / limits::kFetchBytesPerSecondMin);
}

}  // namespace

std::shared_ptr<PeerChannel> PeerSource::ChannelTo(const std::string& address) {
  MutexLock lock(mutex_);
  const auto found = channels_.find(address);
  if (found != channels_.end()) return found->second;
  if (channels_.size() >= kChannelsMax) channels_.clear();  // transfers keep theirs
  PeerTls tls = options_.tls;
  tls.server_name.clear();
  auto channel = std::make_shared<PeerChannel>(address, std::move(tls));
  channels_[address] = channel;
  return channel;
}

Status PeerSource::ReadFrom(const std::string& address, const Piece& piece,
                            FullAssembly& assembly) {
  if (Status dialled = CheckPeerAddress(address, "another receiver");
      !dialled.ok() || UnixPathOf(address).has_value()) {
    return FailedPreconditionError("the sender names '{}', expected HOST:PORT of a receiver",
                                   EscapeUnprintable(address));
  }
  const std::shared_ptr<PeerChannel> channel = ChannelTo(address);
  const auto check = [&](const grpc::ClientContext& context) -> Status {
    if (!channel->secure()) return OkStatus();
    const Peer peer = PeerOf(context.auth_context().get());
    DWS_RETURN_IF_ERROR(channel->CheckVerified(peer, "the receiver"));
    return CheckPeerRole(peer, options_.job_id, Role::kReceive,
                         fmt::format("the receiver at {}", address));
  };
  Fetcher fetcher(channel->channel(), calls_, assembly.layout().signature(), check);
  const TimePoint until = clock_.Now() + kReadFor;
  while (assembly.missing_blocks() > 0 && clock_.Now() < until) {
    const uint64_t before = assembly.missing_blocks();
    const uint64_t bytes = std::min(MissingBytes(assembly), kPartBytes);
    const Status read = fetcher.FullFromPeer(
        piece.target.stream, piece.target.version,
        {.rank = piece.rank,
         .bytes_max = kPartBytes,
         .timeout = kPartGrace + std::chrono::milliseconds(1000 * bytes / kBytesPerSecondMin)},
        assembly);
    if (const std::vector<RankSlice> wrong = assembly.DropWrong(); !wrong.empty()) {
      return DataLossError("{} slices are not as published, the first is of '{}'", wrong.size(),
                           assembly.layout().tensor(wrong[0]).name);
    }
    DWS_RETURN_IF_ERROR(read);
    if (assembly.missing_blocks() == before) {
      return UnavailableError("it holds nothing of the {} blocks that are missing", before);
    }
  }
  return OkStatus();
}

void PeerSource::LeaveOut(const std::set<std::string>& addresses, const Status& why,
                          const Piece& piece) {
  for (const std::string& address : addresses) {
    if (absl::IsAborted(why)) {  // no fault
      bad_.Add(address, clock_.Now() + kOtherVersionFor);
      LogInfo("peer_has_other_version", {{"address", address}, {"reason", Message(why)}});
      continue;
    }
    bad_.Add(address, clock_.Now() + kBadFor);
    LogWarning("peer_left_out", {{"address", address},
                                 {"version", piece.target.version.value()},
                                 {"rank", piece.rank.value()},
                                 {"seconds", ToSeconds(kBadFor)},
                                 {"reason", Message(why)}});
  }
}

// A version that was begun is completed, wherever its rest comes from: newer ones may come faster
// than one is read.
Status PeerSource::Unanswered(const Status& why, const VersionAt& at) const {
  if (!absl::IsOutOfRange(why)) return why;
  MutexLock lock(mutex_);
  return reading_ == at ? UnavailableError("{}", Message(why)) : CancelledError("{}", Message(why));
}

Status PeerSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  const Piece first{.target = piece.target, .rank = TrainerRank(0)};
  Fetcher sender = links_.sender(first).fetcher(first.target, first.rank);
  const TimePoint deadline = clock_.Now() + TransferTime(assembly);
  std::set<std::string> brought;  // that may have brought a part of incomplete slices
  for (int bad = 0; bad < kBadPeersMax && clock_.Now() < deadline;) {
    if (!assembly.wanted()) return CancelledError("given up");
    const Result<Fetcher::PeerAnswer> asked =
        sender.AskForPeer(piece.target.stream, piece.target.version, bad_.At(clock_.Now()));
    if (!asked.ok()) return Unanswered(asked.status(), piece.target.at());
    const Fetcher::PeerAnswer& answer = *asked;
    if (answer.address.empty() && answer.wait == Duration::zero()) {
      return FailedPreconditionError("this receiver is to read version {} from the senders",
                                     piece.target.version.value());
    }
    if (answer.address.empty()) {
      if (!cancellation_.Sleep(std::min<Duration>(answer.wait, kPeerPollMax))) {
        return CancelledError("the receiver is shutting down");
      }
      continue;
    }
    brought.insert(answer.address);
    {
      MutexLock lock(mutex_);
      reading_ = piece.target.at();
    }
    const Status read = ReadFrom(answer.address, piece, assembly);
    if (absl::IsCancelled(read) || !assembly.failed().ok()) return read;
    if (assembly.missing_blocks() == 0) return OkStatus();
    if (read.ok()) continue;
    ++bad;
    LeaveOut(absl::IsDataLoss(read) ? brought : std::set<std::string>{answer.address}, read, piece);
  }
  return UnavailableError("{} blocks are missing after other receivers were read",
                          assembly.missing_blocks());
}

}  // namespace dws
