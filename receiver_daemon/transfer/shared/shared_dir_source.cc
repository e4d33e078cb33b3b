#include "receiver_daemon/transfer/shared/shared_dir_source.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// If the directory lags, no fetch waits for the visibility command at each version. But a mount
// that needs the command would never catch up without it.
constexpr Duration kLateHookInterval = std::chrono::minutes(1);

}  // namespace

SharedDirSource::SharedDirSource(Options options, FileSystem& files, Cancellation& cancellation)
    : options_(std::move(options)), cancellation_(cancellation) {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    ranks_.push_back({.source = std::make_unique<SharedSource>(
                          files,
                          SharedSource::Options{.root = options_.root,
                                                .job_id = options_.job_id,
                                                .view = options_.view,
                                                .rank = TrainerRank(rank),
                                                .key = options_.key,
                                                .pool = options_.pool,
                                                .ahead_bytes_max = options_.ahead_bytes_max,
                                                .is_remote = options_.is_remote},
                          cancellation)});
  }
}

bool SharedDirSource::RunHook(WeightVersion version, bool late, const Wanted& wanted) {
  if (!options_.before_read.given()) return true;
  const bool required = options_.before_read_required;
  {
    MutexLock lock(mutex_);
    const TimePoint now = RealClock().Now();
    if (late && now < hook_not_before_) return !required || !hook_failed_;
    hook_not_before_ = now + kLateHookInterval;
  }
  MutexLock hook_lock(hook_mutex_);
  const Status told =
      options_.before_read.Run(fmt::to_string(version.value()), limits::kSharedHookDeadline,
                               [&] { return !cancellation_.cancelled() && wanted(); });
  if (!told.ok()) LogWarning("shared_before_read_failed", {{"reason", Message(told)}});
  MutexLock lock(mutex_);
  hook_failed_ = !told.ok();
  return !required || told.ok();
}

Result<SharedSource*> SharedDirSource::Await(const Piece& piece, const Wanted& wanted) {
  const WeightVersion version = piece.target.version;
  if (piece.rank.value() >= ranks_.size()) {
    return UnavailableError("the directory has {} ranks", ranks_.size());
  }
  Rank& of = ranks_[piece.rank.value()];
  DWS_RETURN_IF_ERROR(pause_.MayAsk(RealClock().Now()));
  const TimePoint until = RealClock().Now() + options_.visible_wait;
  Status why;
  while (true) {
    if (!RunHook(version, of.late, wanted)) {
      why = UnavailableError("the command that makes it visible failed");
      break;
    }
    const TimePoint begun = RealClock().Now();
    const auto offer = of.source->Look(piece.target.stream);
    Note(offer.status(), begun);
    if (of.source->Has(piece.target.stream, version)) {
      of.late = false;
      return of.source.get();
    }
    if (offer.ok() && offer->welcome.stream == piece.target.stream &&
        offer->versions.back() > version) {
      return AbortedError("the directory no longer has version {}", version.value());
    }
    why = !offer.ok() ? offer.status()
                      : UnavailableError("the directory has no version {} yet", version.value());
    if (of.late || RealClock().Now() >= until) break;
    if (!wanted() || !cancellation_.Sleep(options_.poll)) break;
  }
  of.late = true;
  return UnavailableError("{}", Message(why));
}

void SharedDirSource::Note(const Status& status, TimePoint begun) {
  const TimePoint now = RealClock().Now();
  pause_.Note(status, now - begun, now);
}

Result<DeltaRead> SharedDirSource::ReadDelta(const Piece& piece, const DeltaWant& want,
                                             const Spool::Options& spool) {
  DWS_ASSIGN_OR_RETURN(SharedSource* const source,
                       Await(piece, [&] { return !spool.wanted || spool.wanted(); }));
  const TimePoint begun = RealClock().Now();
  auto object =
      source->Object(piece.target.stream, piece.target.version, *piece.of().layout, want, spool);
  Note(object.status(), begun);
  if (!object.ok()) return object.status();
  return DeltaRead::Object(*std::move(object));
}

Status SharedDirSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  DWS_ASSIGN_OR_RETURN(SharedSource* const source, Await(piece, [&] { return assembly.wanted(); }));
  const TimePoint begun = RealClock().Now();
  const Status read = source->Full(piece.target.stream, piece.target.version, assembly);
  Note(read, begun);
  return read;
}

}  // namespace dws
