#include "receiver_daemon/app/sender_side.h"

#include <utility>

#include "common/base/check.h"
#include "common/transport/shared_fs/names.h"

namespace dws {
namespace {

// Of other receivers' deltas several come together, or from elsewhere, or they are of a view.
bool TakesEarlyDeltas(const ReceiverOptions& options) {
  return options.view.empty() && options.group.group_id.empty() &&
         options.host_share.folder.empty() && options.shared_dir.root.empty();
}

}  // namespace

std::vector<std::string> SenderNames(const ReceiverOptions& options) {
  if (!options.senders.empty()) return options.senders;
  std::vector<std::string> names;
  // An id that cannot be escaped is refused when the directory is opened; here it is only shown.
  const auto job = shared::EscapeId(options.job_id);
  for (uint32_t rank = 0; rank < options.shared_dir.ranks; ++rank) {
    names.push_back(fmt::format("{}/{}/{}", options.shared_dir.root,
                                job.ok() ? *job : options.job_id,
                                shared::RankName(TrainerRank(rank))));
  }
  return names;
}

Result<std::unique_ptr<SenderSide>> SenderSide::Open(const ReceiverOptions& options, PeerTls tls,
                                                     const Parts& parts) {
  std::unique_ptr<SenderSide> side(new SenderSide());
  side->broadcasts_ = OpenBroadcasts(options.broadcasts, parts.clock);
  side->links_ = std::make_unique<SyncLinks>(
      SyncLinks::Options{
          .addresses = options.senders,
          .job_id = options.job_id,
          .receiver_id = options.receiver_id,
          .view = options.view,
          .tls = std::move(tls),
          .profile = options.profile,
          .early_deltas = TakesEarlyDeltas(options) ? options.early_deltas : false,
          .full_ways = {.required = options.full_way, .fabric = options.fabric},
          .pool = &parts.pool,
          .pulse = &parts.pulse,
          .broadcasts = side->broadcasts_.has_value() ? &*side->broadcasts_ : nullptr,
          .broadcast_bytes_max = options.staging_bytes},
      parts.subscription, parts.clock);
  if (!options.host_share.folder.empty()) {
    DWS_ASSIGN_OR_RETURN(side->host_, HostShare::Open({.folder = options.host_share.folder,
                                                       .bytes_max = options.host_share.bytes_max,
                                                       .job_id = options.job_id,
                                                       .pulse = &parts.pulse},
                                                      *side->links_));
  }
  if (!options.shared_dir.root.empty()) DWS_RETURN_IF_ERROR(side->OpenShared(options, parts));
  return side;
}

Status SenderSide::OpenShared(const ReceiverOptions& options, const Parts& parts) {
  const SharedSideOptions& dir = options.shared_dir;
  DWS_CHECK(links_ != nullptr && !dir.root.empty());
  shared::Key key;
  if (!dir.key_file.empty()) {
    DWS_ASSIGN_OR_RETURN(key, shared::LoadKey(parts.files, dir.key_file));
  }
  DWS_ASSIGN_OR_RETURN(shared::VisibilityHook before_read,
                       shared::VisibilityHook::Make(dir.before_read, dir.root));
  if (!options.senders.empty()) {
    beside_ = std::make_unique<SharedBeside>(
        SharedBeside::Options{.root = dir.root,
                              .job_id = options.job_id,
                              .ranks = static_cast<uint32_t>(options.senders.size()),
                              .key = std::move(key),
                              .pool = &parts.pool,
                              .poll = std::chrono::milliseconds(dir.poll_ms),
                              .before_read = std::move(before_read),
                              .before_read_required = dir.before_read_required,
                              .brings_full = !options.full_way.has_value(),
                              .pulse = &parts.pulse},
        parts.files, connected());
    return OkStatus();
  }
  DWS_ASSIGN_OR_RETURN(
      shared_,
      SharedLinks::Create({.root = dir.root,
                           .name = {.job_id = options.job_id, .receiver_id = options.receiver_id},
                           .ranks = dir.ranks,
                           .key = std::move(key),
                           .pool = &parts.pool,
                           .poll = std::chrono::milliseconds(dir.poll_ms),
                           .before_read = std::move(before_read),
                           .before_read_required = dir.before_read_required,
                           .pulse = &parts.pulse},
                          parts.files, parts.subscription));
  return OkStatus();
}

SenderGroup& SenderSide::connected() {
  DWS_CHECK(links_ != nullptr);
  if (host_ != nullptr) return *host_;
  return *links_;
}

SenderGroup& SenderSide::senders() {
  DWS_CHECK(shared_ == nullptr || beside_ == nullptr);
  if (shared_ != nullptr) return *shared_;
  if (beside_ != nullptr) return *beside_;
  return connected();
}

void SenderSide::Start() {
  links_->Start();
  if (shared_ != nullptr) shared_->Start();
}

void SenderSide::Reconnect(const Status& reason) {
  if (shared_ != nullptr) shared_->Reconnect();
  links_->Reconnect(reason);
}

void SenderSide::CancelFetches() {
  if (shared_ != nullptr) shared_->CancelFetches();
  if (beside_ != nullptr) beside_->CancelFetches();
  if (host_ != nullptr) host_->CancelFetches();
  links_->CancelFetches();
}

void SenderSide::Stop() {
  if (shared_ != nullptr) shared_->Stop();
  links_->Stop();
}

}  // namespace dws
