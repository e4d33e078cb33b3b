#include "receiver_daemon/transfer/shared/shared_links.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"
#include "common/transport/shared_fs/names.h"

namespace dws {

SharedLinks::SharedLinks(Options options, Subscription& subscription)
    : options_(std::move(options)), subscription_(subscription), loop_([this] {
        Look();
        return options_.poll;
      }) {}

Result<std::unique_ptr<SharedLinks>> SharedLinks::Create(Options options, FileSystem& files,
                                                         Subscription& subscription) {
  std::unique_ptr<SharedLinks> links(new SharedLinks(std::move(options), subscription));
  const Options& given = links->options_;
  SharedReporter::Options reports{.name = given.name, .rank_folders = {}, .key = given.key};
  std::vector<Copy> copies = given.before;
  copies.push_back({.root = given.root, .files = &files, .is_remote = given.is_remote});
  std::vector<std::shared_ptr<FailurePause>> pauses;
  for (size_t i = 0; i < copies.size(); ++i) pauses.push_back(std::make_shared<FailurePause>());
  for (uint32_t rank = 0; rank < given.ranks; ++rank) {
    Link link;
    std::vector<SharedCopies::Copy> opened;
    for (const Copy& copy : copies) {
      auto source = std::make_unique<SharedSource>(
          *copy.files,
          SharedSource::Options{.root = copy.root,
                                .job_id = given.name.job_id,
                                .view = given.view,
                                .rank = TrainerRank(rank),
                                .key = given.key,
                                .pool = given.pool,
                                .retry_delay = given.retry_delay,
                                .ahead_bytes_max = given.ahead_bytes_max,
                                .is_remote = copy.is_remote,
                                .on_progress = [&subscription] { subscription.OnLooked(); }},
          links->cancellation_);
      opened.push_back({.root = copy.root,
                        .source = std::move(source),
                        .pause = pauses[opened.size()],
                        .is_remote = copy.is_remote});
    }
    link.copies = std::make_unique<SharedCopies>(std::move(opened));
    DWS_ASSIGN_OR_RETURN(link.folder, link.copies->LastFolder());
    reports.rank_folders.push_back(link.folder);
    links->links_.push_back(std::move(link));
  }
  DWS_ASSIGN_OR_RETURN(links->reporter_,
                       SharedReporter::Create(files, subscription, std::move(reports)));
  return links;
}

SharedLinks::~SharedLinks() { Stop(); }

void SharedLinks::Start() {
  reporter_->Start();
  subscription_.ExpectLooks(options_.poll + limits::kLookSilenceMax);
  loop_.Start();
}

void SharedLinks::Reconnect() {
  {
    MutexLock lock(mutex_);
    reconnect_ = true;
  }
  loop_.Wake();
}

void SharedLinks::CancelFetches() { cancellation_.Cancel(); }

void SharedLinks::Stop() {
  CancelFetches();
  loop_.Stop();
  if (reporter_ != nullptr) reporter_->Stop();
}

void SharedLinks::Look() {
  const std::vector<WeightVersion>& known = links_.front().announced;
  const Status told =
      options_.before_read.Run(known.empty() ? "" : fmt::to_string(known.back().value()),
                               limits::kSharedHookDeadline, [this] { return !loop_.stopping(); });
  if (loop_.stopping()) return;
  if (const std::string trouble(Message(told)); trouble != hook_trouble_) {
    hook_trouble_ = trouble;
    if (!told.ok()) LogWarning("shared_before_read_failed", {{"reason", trouble}});
  }
  const Status may_read = options_.before_read_required
                              ? Annotate(told, "before the look at the directory")
                              : OkStatus();
  bool reconnect = false;
  {
    MutexLock lock(mutex_);
    reconnect = std::exchange(reconnect_, false);
  }
  for (uint32_t rank = 0; rank < links_.size(); ++rank) {
    Link& link = links_[rank];
    if (reconnect) {  // what was seen may be of a stream that was forgotten since
      link.connected = false;
      link.welcomed.reset();
      link.announced.clear();
      link.copies->AskAll();
    }
    Poll(SenderIndex(rank), link, may_read);
    subscription_.OnLooked();
  }
}

// Logs the same trouble once. Returns true if it is another than before.
bool SharedLinks::Note(Link& link, const Status& status) {
  std::string trouble(Message(status));
  if (trouble == link.trouble) return false;
  link.trouble = std::move(trouble);
  if (!status.ok()) {
    LogWarning("shared_dir_trouble", {{"folder", link.folder}, {"reason", Message(status)}});
  }
  return true;
}

SharedCopies::Seen SharedLinks::SeenOf(const Link& link) const {
  SharedCopies::Seen seen{
      .followed = subscription_.stream(), .accepted = std::nullopt, .live = subscription_.live()};
  if (link.welcomed.has_value() && !link.refused && !link.announced.empty()) {
    seen.accepted =
        SharedCopies::Reach{link.welcomed->first, link.welcomed->second, link.announced.back()};
  }
  return seen;
}

void SharedLinks::Poll(SenderIndex index, Link& link, const Status& may_read) {
  auto offer = may_read.ok() ? link.copies->Look(SeenOf(link)) : may_read;
  const bool news = Note(link, offer.ok() ? offer->trouble : offer.status());
  if (!offer.ok()) {
    if (std::exchange(link.connected, false) || news) {
      subscription_.OnDisconnect(index, offer.status());
    }
    return;
  }
  if (!std::exchange(link.connected, true)) {
    LogInfo("shared_dir_found", {{"folder", link.folder}});
    subscription_.OnConnect(index);
    link.welcomed.reset();
  }
  const std::pair of(offer->welcome.stream, offer->welcome.rank_epoch);
  // A welcome that was refused is tried again: the receiver may follow another stream by now.
  if (link.welcomed != of || link.refused) {
    const Status welcomed = subscription_.OnWelcome(index, offer->welcome);
    if (!welcomed.ok() && (link.welcomed != of || !link.refused)) {
      LogWarning("sender_refused", {{"folder", link.folder}, {"reason", Message(welcomed)}});
    }
    link.welcomed = of;
    link.refused = !welcomed.ok();
    link.announced.clear();
  }
  if (link.refused || link.announced == offer->versions) return;
  const Status announced = subscription_.OnAnnounce(index, ++link.nonce,
                                                    {.stream = offer->welcome.stream,
                                                     .rank_epoch = offer->welcome.rank_epoch,
                                                     .versions = offer->versions,
                                                     .newest_token = offer->newest_token});
  if (!announced.ok()) {
    LogDebug("announcement_ignored", {{"folder", link.folder}, {"reason", Message(announced)}});
    return;
  }
  link.announced = offer->versions;
}

void SharedLinks::NoteDamage(const SyncTarget& target, TrainerRank rank, const Status& status) {
  if (!absl::IsDataLoss(status)) return;
  LogWarning(
      "shared_dir_damaged",
      {{"version", target.version.value()}, {"rank", rank.value()}, {"reason", Message(status)}});
  reporter_->Rejected(rank, target.at(),
                      {.last_good = std::nullopt, .reason = status, .slices = {}});
}

Result<DeltaRead> SharedLinks::ReadDelta(const Piece& piece, const DeltaWant& want,
                                         const Spool::Options& spool) {
  DWS_ASSIGN_OR_RETURN(Spool object, Last(piece.target, piece.rank)
                                         .Object(piece.target.stream, piece.target.version,
                                                 *piece.of().layout, want, spool));
  return DeltaRead::Object(std::move(object));
}

Result<Description> SharedLinks::Describe(const SyncTarget& target, TrainerRank rank) {
  const WaitScope wait(options_.liveness);
  auto description = links_[rank.value()].copies->Describe(target, rank);
  NoteDamage(target, rank, description.status());
  return description;
}

Status SharedLinks::ReadFull(const Piece& piece, FullAssembly& assembly) {
  const SyncTarget& target = piece.target;
  const Status read = Last(target, piece.rank).Full(target.stream, target.version, assembly);
  NoteDamage(target, piece.rank, read);
  return absl::IsFailedPrecondition(read) ? Ask(piece, assembly, read) : read;
}

Status SharedLinks::Ask(const Piece& piece, const FullAssembly& assembly, const Status& lacking) {
  const auto& [target, rank] = piece;
  reporter_->Lacks(rank, target.at());
  // The sender writes them soon: try again.
  return UnavailableError(
      "{} of {} slices of the engine are not those of version {}, the first of tensor '{}'; {}. "
      "Full tensors are asked for by this receiver's report in {}/{}; if none come, the sender "
      "cannot read it: start it with --shared-dir-first=full",
      assembly.slices().size(), assembly.layout().slice_count(), target.version.value(),
      assembly.layout().tensor(assembly.slices().front()).name, Message(lacking),
      links_[rank.value()].folder, shared::kReceiversName);
}

void SharedLinks::Staged(const SyncTarget& target, TrainerRank rank) {
  reporter_->Staged(rank, target.at());
}

void SharedLinks::Committed(const SyncTarget& target, TrainerRank rank,
                            const CommittedReport& report) {
  reporter_->Committed(rank, target.at(), report);
}

void SharedLinks::Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) {
  reporter_->Rejected(rank, target.at(), rejection);
}

}  // namespace dws
