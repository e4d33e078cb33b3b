#include "receiver_daemon/transfer/shared/shared_beside.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// If the directory lags, no fetch waits for the visibility command at each version. But a mount that
// needs the command would never catch up without it.
constexpr Duration kLateHookInterval = std::chrono::minutes(1);

}  // namespace

SharedBeside::SharedBeside(Options options, FileSystem& files, SenderGroup& senders)
    : options_(std::move(options)), senders_(senders) {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    ranks_.push_back({.source = std::make_unique<SharedSource>(
                          files, SharedSource::Options{.root = options_.root,
                                                       .job_id = options_.job_id,
                                                       .rank = TrainerRank(rank),
                                                       .key = options_.key,
                                                       .pool = options_.pool})});
  }
}

void SharedBeside::CancelFetches() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    cancel_changed_.NotifyAll();
  }
  for (const Rank& rank : ranks_) rank.source->Cancel();
}

// False: cancelled.
bool SharedBeside::Pause(Duration time) {
  MutexLock lock(mutex_);
  if (!cancelled_ && time > Duration::zero()) cancel_changed_.WaitFor(mutex_, time);
  return !cancelled_;
}

bool SharedBeside::RunHook(WeightVersion version, bool late, const Spool::Options& spool) {
  if (!options_.before_read.given()) return true;
  const bool required = options_.before_read_required;
  {
    MutexLock lock(mutex_);
    const TimePoint now = RealClock().Now();
    if (late && now < hook_not_before_) return !required || !hook_failed_;
    hook_not_before_ = now + kLateHookInterval;
  }
  MutexLock hook_lock(hook_mutex_);
  const Status told = options_.before_read.Run(
      fmt::to_string(version.value()), limits::kSharedHookDeadline,
      [&] { return Pause(Duration::zero()) && (!spool.wanted || spool.wanted()); });
  if (!told.ok()) LogWarning("shared_before_read_failed", {{"reason", Message(told)}});
  MutexLock lock(mutex_);
  hook_failed_ = !told.ok();
  return !required || told.ok();
}

SharedSource* SharedBeside::Await(const SyncTarget& target, TrainerRank rank,
                                  const Spool::Options& spool) {
  if (rank.value() >= ranks_.size()) return nullptr;
  Rank& of = ranks_[rank.value()];
  const TimePoint until = RealClock().Now() + options_.visible_wait;
  while (true) {
    if (!RunHook(target.version, of.late, spool)) break;
    const auto offer = of.source->Look(target.stream);
    if (!offer.ok() && !absl::IsUnavailable(offer.status())) {
      LogWarning("shared_dir_trouble", {{"reason", Message(offer.status())}});
    }
    if (of.source->Has(target.stream, target.version)) {
      of.late = false;
      return of.source.get();
    }
    const bool over = of.late || RealClock().Now() >= until;
    if (over || (spool.wanted && !spool.wanted()) || !Pause(options_.poll)) break;
  }
  of.late = true;
  return nullptr;
}

bool SharedBeside::FallsBack(const SyncTarget& target, TrainerRank rank,
                             const Status& status) const {
  if (status.ok() || absl::IsCancelled(status) || absl::IsResourceExhausted(status)) return false;
  LogWarning(
      "shared_dir_passed_over",
      {{"version", target.version.value()}, {"rank", rank.value()}, {"reason", Message(status)}});
  return true;
}

Result<Spool> SharedBeside::FetchObject(const SyncTarget& target, TrainerRank rank,
                                        const DeltaWant& want, Spool::Options spool) {
  {
    const PulseWait wait(options_.pulse);
    if (SharedSource* const source = Await(target, rank, spool); source != nullptr) {
      auto object = source->Object(target.stream, target.version,
                                   *target.ranks[rank.value()].layout, want, spool);
      if (!FallsBack(target, rank, object.status())) return object;
    }
  }
  return senders_.FetchObject(target, rank, want, std::move(spool));
}

Result<FetchedFull> SharedBeside::FetchFull(const SyncTarget& target, TrainerRank rank,
                                            const FullWant& want, Spool::Options spool) {
  if (options_.brings_full) {
    const PulseWait wait(options_.pulse);
    if (SharedSource* const source = Await(target, rank, spool); source != nullptr) {
      auto full = source->Full(target.stream, target.version, want.layout, want.slices, spool);
      if (!FallsBack(target, rank, full.status())) return full;
    }
  }
  return senders_.FetchFull(target, rank, want, std::move(spool));
}

}  // namespace dws
