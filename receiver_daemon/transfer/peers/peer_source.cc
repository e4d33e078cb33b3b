// 1. ask the sender of trainer rank 0 whom to read from: wait, read from the senders, or an address
// 2. read from there, a part at a time, so that a slow receiver is noticed, and ask again soon
// 3. compare each slice when it is complete; if it is wrong, all that may have brought a part of it
//    are left out
#include "receiver_daemon/transfer/peers/peer_source.h"

#include <algorithm>
#include <chrono>
#include <span>
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
// The calls for all trainer ranks together ask for so much at a time, and have so long. That is
// less than kPeerReadLease.
constexpr uint64_t kPartBytes = uint64_t{16} << 20;
constexpr uint64_t kPartBytesMin = uint64_t{1} << 20;
constexpr std::chrono::seconds kPartTime{10};
// After so long the sender is asked again: well before kPeerReadLease.
constexpr std::chrono::seconds kReadFor{3};
// One that served badly is left out for so long; one that had another version twice, shortly.
constexpr std::chrono::seconds kBadFor{60};
constexpr std::chrono::seconds kOtherVersionFor{2};
// A sender that does not answer is asked again for so long, with these pauses.
constexpr std::chrono::seconds kUnansweredMax{15};
constexpr std::chrono::milliseconds kAskAgainMin{50};
constexpr std::chrono::milliseconds kAskAgainMax{2000};

uint64_t SizeBytes(const SyncTarget& target) {
  uint64_t bytes = 0;
  for (const SyncTarget::Rank& rank : target.ranks) bytes += rank.layout->size_bytes();
  return bytes;
}

// The wait for others, who read all ranks, and the reads from them together.
Duration TransferTime(const SyncTarget& target) {
  return limits::kRpcDeadline +
         std::chrono::seconds(SizeBytes(target) / limits::kFetchBytesPerSecondMin);
}

// Returns whether some slices have come in part.
bool HasParts(const FullAssembly& assembly) {
  return std::ranges::any_of(assembly.Missing(), [&](const BlockRange& range) {
    return range.block_count != assembly.layout().slice(range.slice).blocks;
  });
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
  const uint64_t part_bytes = std::max(kPartBytes / piece.target.ranks.size(), kPartBytesMin);
  while (assembly.missing_blocks() > 0 && clock_.Now() < until) {
    const uint64_t before = assembly.missing_blocks();
    const Status read = fetcher.FullFromPeer(
        piece.target.stream, piece.target.version,
        {.rank = piece.rank, .bytes_max = part_bytes, .timeout = kPartTime}, assembly);
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

void PeerSource::LeaveOut(const std::string& address, const std::set<std::string>& brought,
                          const Status& why, const Piece& piece) {
  {
    MutexLock lock(mutex_);
    channels_.erase(address);  // its certificates may be renewed when it is dialled next
  }
  for (const std::string& bad : absl::IsDataLoss(why) ? brought : std::set{address}) {
    bad_.Add(bad, clock_.Now() + kBadFor);
    LogWarning("peer_left_out", {{"address", bad},
                                 {"version", piece.target.version.value()},
                                 {"rank", piece.rank.value()},
                                 {"seconds", ToSeconds(kBadFor)},
                                 {"reason", Message(why)}});
  }
}

Result<Fetcher::PeerAnswer> PeerSource::Ask(const Piece& piece,
                                            std::span<const std::string> without, bool failed) {
  const Piece first{.target = piece.target, .rank = TrainerRank(0)};
  bool begun = false;
  {
    MutexLock lock(mutex_);
    begun = begun_ == piece.target.at();
  }
  const std::vector<std::string> avoid = bad_.At(clock_.Now());
  return links_.sender(first)
      .fetcher(first.target, first.rank)
      .AskForPeer(piece.target.stream, piece.target.version,
                  {.avoid = avoid,
                   .without = without,
                   .begun = begun,
                   .other_ranks_bytes = SizeBytes(piece.target) - first.of().layout->size_bytes(),
                   .failed = failed,
                   .only_others = options_.only});
}

bool PeerSource::HasFailed(const Piece& piece) {
  MutexLock lock(mutex_);
  const auto granted = granted_.find(piece.rank);
  if (granted == granted_.end() || granted->second != piece.target.at()) return false;
  granted_.clear();
  return true;
}

Duration PeerSource::WaitBeforeAsking(const VersionAt& at) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  if (waits_for_ != at) return Duration::zero();
  if (now < waits_until_) return waits_until_ - now;
  waits_until_ = now + kPeerPollMin;  // the others wait for what this one is told
  return Duration::zero();
}

void PeerSource::NotSilent() {
  MutexLock lock(mutex_);
  answered_ = clock_.Now();
}

bool PeerSource::IsSilent() const {
  MutexLock lock(mutex_);
  return clock_.Now() - answered_ >= kUnansweredMax;
}

void PeerSource::AfterAnswer(const VersionAt& at, std::optional<Duration> wait) {
  MutexLock lock(mutex_);
  answered_ = clock_.Now();
  waits_for_.reset();
  if (!wait.has_value()) return;
  waits_for_ = at;
  waits_until_ = clock_.Now() + std::min<Duration>(*wait, kPeerPollMax);
}

Status PeerSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  const VersionAt at = piece.target.at();
  const TimePoint deadline = clock_.Now() + TransferTime(piece.target);
  NotSilent();
  Duration again = kAskAgainMin;
  bool others = HasParts(assembly);  // other sources may have brought what is wrong
  std::set<std::string> brought;     // that may have brought a part of incomplete slices
  std::vector<std::string> without;
  std::set<std::string> had_other;  // another version, when they were read
  Duration wait = {};
  bool failed = HasFailed(piece);
  for (int bad = 0; bad < kBadPeersMax && clock_.Now() < deadline;) {
    if (!cancellation_.Sleep(std::exchange(wait, {}))) {
      return CancelledError("the receiver is shutting down");
    }
    if (!assembly.wanted()) return CancelledError("given up");
    wait = WaitBeforeAsking(at);
    if (wait > Duration::zero()) continue;
    const Result<Fetcher::PeerAnswer> answer = Ask(piece, without, failed);
    if (absl::IsUnavailable(answer.status()) && !IsSilent()) {
      wait = std::exchange(again, std::min<Duration>(2 * again, kAskAgainMax));
      continue;
    }
    if (absl::IsOutOfRange(answer.status())) return CancelledError("{}", Message(answer.status()));
    DWS_RETURN_IF_ERROR(answer.status());
    again = kAskAgainMin;
    without.clear();
    failed = false;
    const bool waits = answer->address.empty() && answer->wait > Duration::zero();
    AfterAnswer(at, waits ? std::optional(answer->wait) : std::nullopt);
    if (waits) continue;
    if (answer->address.empty()) {
      MutexLock lock(mutex_);
      granted_[piece.rank] = at;
      return FailedPreconditionError("this receiver is to read version {} from the senders",
                                     at.version.value());
    }
    const uint64_t missing = assembly.missing_blocks();
    brought.insert(answer->address);
    const Status read = ReadFrom(answer->address, piece, assembly);
    NotSilent();
    if (assembly.missing_blocks() < missing) {
      MutexLock lock(mutex_);
      begun_ = at;
    }
    if (absl::IsCancelled(read) || !assembly.failed().ok()) return read;
    if (assembly.missing_blocks() == 0) return OkStatus();
    if (read.ok()) {
      if (!HasParts(assembly)) brought.clear();
      continue;
    }
    if (absl::IsAborted(read)) {  // no fault
      LogInfo("peer_has_other_version", {{"address", answer->address}, {"reason", Message(read)}});
      // The sender is told. It may name this one again soon, when it has the version.
      without = {answer->address};
      if (!had_other.insert(answer->address).second) {
        bad_.Add(answer->address, clock_.Now() + kOtherVersionFor);
      }
      continue;
    }
    ++bad;
    if (absl::IsDataLoss(read) && std::exchange(others, false)) continue;
    LeaveOut(answer->address, brought, read, piece);
  }
  return UnavailableError("{} blocks of version {} are missing after other receivers were read{}",
                          assembly.missing_blocks(), at.version.value(),
                          options_.only ? ", and --full-way=peer allows no sender: one receiver of "
                                          "the job has to take it by another way"
                                        : "");
}

}  // namespace dws
