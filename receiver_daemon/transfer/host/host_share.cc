// 1. What is in this process already needs no folder.
// 2. A file in the folder is read. Else whoever gets the lock fetches, and the others wait for the
//    file, or for the lock of a receiver that failed or died.
// 3. Whoever fetched leaves the file, then frees the lock.
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

Result<std::unique_ptr<HostShare>> HostShare::Open(Options options, SenderGroup& senders) {
  DWS_ASSIGN_OR_RETURN(HostFolder folder, HostFolder::Open(options.folder, options.bytes_max));
  return std::unique_ptr<HostShare>(new HostShare(std::move(options), std::move(folder), senders));
}

void HostShare::CancelFetches() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  cancel_changed_.NotifyAll();
}

bool HostShare::Pause(Duration time) {
  MutexLock lock(mutex_);
  if (!cancelled_) cancel_changed_.WaitFor(mutex_, time);
  return !cancelled_;
}

HostShare::Totals HostShare::totals() const {
  return {.read_bytes = read_bytes_, .written_bytes = written_bytes_, .failures = failures_};
}

void HostShare::Note(const Status& status, WeightVersion version) {
  if (status.ok()) {
    failing_ = false;
    return;
  }
  ++failures_;
  if (failing_.exchange(true)) return;
  LogWarning("host_share_passed_over", {{"version", version.value()}, {"reason", Message(status)}});
}

void HostShare::Remember(TrainerRank rank, const HostKey& key) {
  MutexLock lock(mutex_);
  last_.insert_or_assign(rank, key);
}

Result<HostShare::Turn> HostShare::Await(const HostKey& key, const Spool::Options& spool) {
  const PulseWait wait(options_.pulse);
  const TimePoint until = RealClock().Now() + options_.wait_max;
  while (true) {
    // The lock first: between looking for the file and taking the lock its holder may have finished.
    DWS_ASSIGN_OR_RETURN(UniqueFd lock, folder_.TryLock(key));
    DWS_ASSIGN_OR_RETURN(const std::optional<UniqueFd> file, folder_.Find(key));
    if (file.has_value()) {
      lock.reset();  // all read at once
      Result<std::optional<Spool>> object = folder_.Read(*file, key, spool);
      if (absl::IsDataLoss(object.status())) folder_.Remove(key);
      DWS_RETURN_IF_ERROR(object.status());
      return Turn{.object = *std::move(object), .lock = std::nullopt};
    }
    if (lock.valid()) return Turn{.object = std::nullopt, .lock = std::move(lock)};
    if (RealClock().Now() >= until) {
      return UnavailableError("another receiver of this host has been fetching it for {} s",
                              ToSeconds(options_.wait_max));
    }
    if ((spool.wanted && !spool.wanted()) || !Pause(limits::kHostSharePoll)) {
      return CancelledError("given up while another receiver of this host fetched it");
    }
  }
}

Result<Spool> HostShare::FetchObject(const SyncTarget& target, TrainerRank rank,
                                     const DeltaWant& want, Spool::Options spool) {
  DWS_ASSIGN_OR_RETURN(std::optional<Spool> here, TakeObject(target, rank, want.base, spool));
  if (here.has_value()) return *std::move(here);
  if (!target.ranks[rank.value()].state_token.has_value()) {
    return senders_.FetchObject(target, rank, want, std::move(spool));
  }
  const HostKey key = KeyOf(options_.job_id, target, rank, want.base, want.slices);
  Result<Turn> turn = Await(key, spool);
  if (absl::IsCancelled(turn.status())) return turn.status();
  if (!turn.ok()) Note(turn.status(), target.version);
  if (turn.ok() && turn->object.has_value()) {
    Note(OkStatus(), target.version);
    Remember(rank, key);
    read_bytes_ += turn->object->size_bytes();
    return *std::move(turn->object);
  }
  // Without our weights: what is left for others is not made of them.
  Result<Spool> object = senders_.FetchObject(
      target, rank, {.base = want.base, .slices = want.slices}, std::move(spool));
  if (!object.ok() || !turn.ok() || !turn->lock.has_value()) return object;
  const Status put = folder_.Put(key, *object);
  Note(put, target.version);
  if (put.ok()) written_bytes_ += object->size_bytes();
  Remember(rank, key);
  return object;
}

void HostShare::Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) {
  std::optional<HostKey> refused;
  {
    MutexLock lock(mutex_);
    const auto last = last_.find(rank);
    if (last != last_.end() && last->second.version == target.version) refused = last->second;
  }
  if (refused.has_value()) folder_.Remove(*refused);
  senders_.Rejected(target, rank, rejection);
}

}  // namespace dws
