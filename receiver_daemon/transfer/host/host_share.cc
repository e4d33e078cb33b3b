// 1. If the folder has the file, it is read. Else the receiver that gets the lock fetches the
//    object, and the others wait for the file, or for the lock of a receiver that failed or died.
// 2. The receiver that fetched the object writes the file, then frees the lock.
#include "receiver_daemon/transfer/host/host_share.h"
#include "common/model/host_limits.h"

#include <array>
#include <span>

#include "common/base/log/log.h"
#include "common/formats/slime_delta/digest/xxh3.h"

namespace dws {
namespace {

std::string Hex(const slime::Xxh3& hash) {
  std::string text;
  for (const uint8_t byte : hash.Digest()) text += fmt::format("{:02x}", byte);
  return text;
}

HostKey KeyOf(const std::string& job_id, const SyncTarget& target, TrainerRank rank,
              WeightVersion base, const SliceSelection& slices) {
  const SyncTarget::Rank& of = target.ranks[rank.value()];
  slime::Xxh3 stream;
  stream.Update(AsBytes(fmt::format("{} {}", ToString(target.stream), job_id)));
  slime::Xxh3 object;
  object.Update(
      AsBytes(fmt::format("{} {} {} {} {} {}", Hex(stream), rank.value(),
                          ToString(of.layout->signature()), base.value(), ToString(*of.state_token),
                          slices.has_value() ? std::to_string(slices->size()) : "all")));
  if (slices.has_value()) object.Update(std::as_bytes(std::span(*slices)));
  return {.stream = Hex(stream), .version = target.version, .object = Hex(object)};
}

}  // namespace

Result<std::unique_ptr<HostShare>> HostShare::Open(Options options, Cancellation& cancellation) {
  DWS_ASSIGN_OR_RETURN(HostFolder folder, HostFolder::Open(options.folder, options.bytes_max));
  return std::unique_ptr<HostShare>(
      new HostShare(std::move(options), std::move(folder), cancellation));
}

HostShare::Totals HostShare::totals() const {
  return {.read_bytes = read_bytes_, .written_bytes = written_bytes_, .failures = failures_};
}

void HostShare::Remember(TrainerRank rank, const HostKey& key) {
  MutexLock lock(mutex_);
  last_.insert_or_assign(rank, key);
}

Result<HostShare::Turn> HostShare::Await(const HostKey& key, const Spool::Options& spool) {
  const TimePoint until = RealClock().Now() + options_.wait_max;
  while (true) {
    // Takes the lock first: between a look for the file and taking the lock, its holder may finish.
    DWS_ASSIGN_OR_RETURN(UniqueFd lock, folder_.TryLock(key));
    DWS_ASSIGN_OR_RETURN(const std::optional<UniqueFd> file, folder_.Find(key));
    if (file.has_value()) {
      lock.reset();  // so that all read at once
      Result<std::optional<Spool>> object = folder_.Read(*file, key, spool);
      if (absl::IsDataLoss(object.status())) folder_.Remove(key);
      DWS_RETURN_IF_ERROR(object.status());
      return Turn{.object = *std::move(object), .lock = {}};
    }
    if (lock.valid()) return Turn{.object = std::nullopt, .lock = std::move(lock)};
    if (RealClock().Now() >= until) {
      return UnavailableError("another receiver of this host has been fetching it for {} s",
                              ToSeconds(options_.wait_max));
    }
    if ((spool.wanted && !spool.wanted()) || !cancellation_.Sleep(limits::kHostSharePoll)) {
      return CancelledError("given up while another receiver of this host fetched it");
    }
  }
}

Result<DeltaRead> HostShare::ReadDelta(const Piece& piece, const DeltaWant& want,
                                       const Spool::Options& spool) {
  if (!piece.of().state_token.has_value()) {
    return DeltaRead::Without("its state token is not announced");
  }
  const HostKey key = KeyOf(options_.job_id, piece.target, piece.rank, want.base, want.slices);
  Result<Turn> turn = Await(key, spool);
  if (!turn.ok()) {
    if (absl::IsCancelled(turn.status())) return turn.status();
    ++failures_;
    // This includes a folder without room for a lock: other sources need none.
    return UnavailableError("{}", Message(turn.status()));
  }
  if (turn->object.has_value()) {
    Remember(piece.rank, key);
    read_bytes_ += turn->object->size_bytes();
    return DeltaRead::Object(*std::move(turn->object));
  }
  if (!turn->lock.valid()) return DeltaRead::Without("too large for it");
  const auto lock = std::make_shared<UniqueFd>(std::move(turn->lock));
  return DeltaRead::Keep(
      "this receiver fetches it for the host",
      [this, rank = piece.rank, key, lock](const Spool& object) { Leave(rank, key, object); });
}

void HostShare::Leave(TrainerRank rank, const HostKey& key, const Spool& object) {
  const Status put = folder_.Put(key, object);
  Remember(rank, key);
  if (put.ok()) {
    written_bytes_ += object.size_bytes();
    failing_ = false;
    return;
  }
  ++failures_;
  if (failing_.exchange(true)) return;
  LogWarning("host_share_not_written",
             {{"version", key.version.value()}, {"reason", Message(put)}});
}

void HostShare::Refused(const Piece& piece) {
  std::optional<HostKey> refused;
  {
    MutexLock lock(mutex_);
    const auto last = last_.find(piece.rank);
    if (last != last_.end() && last->second.version == piece.target.version) {
      refused = last->second;
    }
  }
  if (refused.has_value()) folder_.Remove(*refused);
}

}  // namespace dws
