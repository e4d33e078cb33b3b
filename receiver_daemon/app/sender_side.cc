#include "receiver_daemon/app/sender_side.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/threads/loop_thread.h"
#include "common/sources/sender/device_source.h"
#include "common/sources/sender/fabric_source.h"
#include "common/sources/sender/grpc_source.h"
#include "common/sources/sender/same_host_source.h"
#include "common/transport/shared_fs/names.h"
#include "receiver_daemon/transfer/shared/shared_dir_source.h"
#include "receiver_daemon/transfer/sources/broadcast_source.h"
#include "receiver_daemon/transfer/sources/inline_source.h"

namespace dws {
namespace {

// Deltas of views, of commit groups, and those that receivers share are read when they are
// published.
bool TakesEarlyDeltas(const ReceiverOptions& options) {
  return options.view.empty() && options.group.group_id.empty() &&
         options.host_share.folder.empty() && options.shared_dir.root.empty();
}

// For reading ahead from a place that is far away.
constexpr uint64_t kAheadBytesMax = uint64_t{64} << 20;

// How long the last reports may take in a store.
constexpr std::chrono::seconds kReportPatience{2};

// What reading a shared directory takes.
struct DirectoryAccess {
  shared::Key key;  // empty without a file of it
  shared::VisibilityHook before_read;
};

Result<DirectoryAccess> AccessTo(const SharedSideOptions& dir, const SharedBase& base,
                                 FileSystem& files) {
  DirectoryAccess access;
  if (!dir.key_file.empty()) {
    DWS_ASSIGN_OR_RETURN(access.key, shared::LoadKey(files, dir.key_file));
  }
  DWS_ASSIGN_OR_RETURN(access.before_read,
                       shared::VisibilityHook::Make(dir.before_read, base.root));
  return access;
}

// A directory of this machine has its pages read ahead by the kernel.
uint64_t AheadBytesMax(const SharedBase& base, const ReceiverOptions& options) {
  return base.is_remote() ? std::min(kAheadBytesMax, options.staging_bytes / 8) : 0;
}

}  // namespace

std::vector<std::string> SenderNames(const ReceiverOptions& options) {
  if (!options.senders.empty()) return options.senders;
  std::vector<std::string> names;
  // An id that cannot be escaped is refused when the directory is opened; here it is only shown.
  const auto job = shared::EscapeId(options.job_id);
  for (uint32_t rank = 0; rank < options.shared_dir.ranks; ++rank) {
    names.push_back(
        fmt::format("{}/{}/{}", shared::RootOfView(options.shared_dir.bases().back(), options.view),
                    job.ok() ? *job : options.job_id, shared::RankName(TrainerRank(rank))));
  }
  return names;
}

Result<std::unique_ptr<SenderSide>> SenderSide::Open(const ReceiverOptions& options,
                                                     const PeerTls& tls, const Parts& parts) {
  std::unique_ptr<SenderSide> side(new SenderSide());
  side->broadcasts_ = OpenBroadcasts(options.broadcasts, parts.clock);
  DWS_ASSIGN_OR_RETURN(side->bases_,
                       OpenSharedBases(options, parts.files, side->cancellation_, side->stopping_));
  side->links_ = std::make_unique<SyncLinks>(
      SyncLinks::Options{
          .addresses = options.senders,
          .job_id = options.job_id,
          .receiver_id = options.receiver_id,
          .view = options.view,
          .peer_address = parts.peer_address,
          .tls = tls,
          .early_deltas = TakesEarlyDeltas(options) ? options.early_deltas : false,
          .liveness = &parts.liveness,
          .broadcasts = side->broadcasts_.has_value() ? &*side->broadcasts_ : nullptr,
          .broadcast_bytes_max = options.staging_bytes},
      parts.subscription, parts.clock);
  if (options.senders.empty() && !side->bases_.empty()) {
    DWS_RETURN_IF_ERROR(side->OpenSharedLinks(options, parts));
  } else {
    DWS_RETURN_IF_ERROR(side->OpenSources(options, tls, parts));
  }
  std::vector<Source*> sources;
  for (const auto& source : side->owned_) sources.push_back(source.get());
  if (side->shared_ != nullptr) sources.push_back(side->shared_.get());
  side->sources_ = std::make_unique<SourceChain>(
      std::move(sources), SourceChain::Options{.senders = SenderNames(options),
                                               .only_full = options.full_way,
                                               .liveness = &parts.liveness,
                                               .cancellation = &side->cancellation_});
  return side;
}

Status SenderSide::OpenSources(const ReceiverOptions& options, const PeerTls& tls,
                               const Parts& parts) {
  owned_.push_back(std::make_unique<InlineSource>(*links_));
  if (broadcasts()) owned_.push_back(std::make_unique<BroadcastSource>(*links_));
  // Before all that loads a sender or its connection: who gives a directory wants to spare these.
  for (const SharedBase& base : bases_) {
    const auto ranks = static_cast<uint32_t>(options.senders.size());
    DWS_RETURN_IF_ERROR(OpenSharedDir(base, ranks, options, parts));
  }
  if (!options.host_share.folder.empty()) {
    DWS_ASSIGN_OR_RETURN(auto host, HostShare::Open({.folder = options.host_share.folder,
                                                     .bytes_max = options.host_share.bytes_max,
                                                     .job_id = options.job_id},
                                                    cancellation_));
    host_ = host.get();
    owned_.push_back(std::move(host));
  }
  owned_.push_back(std::make_unique<DeviceSource>(*links_, parts.clock));
  owned_.push_back(std::make_unique<SameHostSource>(*links_, parts.pool, cancellation_));
  // With `auto` a fabric that is off is no source; where it is required, it says so.
  if (options.fabric.on || options.full_way == FabricSource::kName) {
    owned_.push_back(std::make_unique<FabricSource>(*links_, options.fabric, LentMemory::Connect(),
                                                    parts.clock));
  }
  if (!parts.peer_address.empty()) {
    auto peers = std::make_unique<PeerSource>(
        *links_,
        PeerSource::Options{
            .job_id = options.job_id, .tls = tls, .only = options.full_way == PeerSource::kName},
        cancellation_, parts.clock);
    peers_ = peers.get();
    owned_.push_back(std::move(peers));
  }
  owned_.push_back(std::make_unique<GrpcSource>(*links_, options.profile, parts.clock));
  return OkStatus();
}

Status SenderSide::OpenSharedDir(const SharedBase& base, uint32_t ranks,
                                 const ReceiverOptions& options, const Parts& parts) {
  const SharedSideOptions& dir = options.shared_dir;
  DWS_ASSIGN_OR_RETURN(DirectoryAccess access, AccessTo(dir, base, parts.files));
  owned_.push_back(std::make_unique<SharedDirSource>(
      SharedDirSource::Options{.root = base.root,
                               .job_id = options.job_id,
                               .view = options.view,
                               .ranks = ranks,
                               .key = std::move(access.key),
                               .pool = &parts.pool,
                               .poll = std::chrono::milliseconds(dir.poll_ms),
                               .before_read = std::move(access.before_read),
                               .before_read_required = dir.before_read_required,
                               .name = base.name,
                               .ahead_bytes_max = AheadBytesMax(base, options),
                               .is_remote = base.is_remote()},
      *base.files, cancellation_));
  return OkStatus();
}

Status SenderSide::OpenSharedLinks(const ReceiverOptions& options, const Parts& parts) {
  const SharedSideOptions& dir = options.shared_dir;
  const SharedBase& last = bases_.back();
  std::vector<SharedLinks::Copy> before;
  for (const SharedBase& base : bases_) {
    if (&base == &last) break;
    before.push_back({.root = base.root, .files = base.files, .is_remote = base.is_remote()});
    DWS_RETURN_IF_ERROR(OpenSharedDir(base, dir.ranks, options, parts));
  }
  DWS_ASSIGN_OR_RETURN(DirectoryAccess access, AccessTo(dir, last, parts.files));
  DWS_ASSIGN_OR_RETURN(
      shared_,
      SharedLinks::Create({.root = last.root,
                           .is_remote = last.is_remote(),
                           .before = std::move(before),
                           .source_name = last.name,
                           .name = {.job_id = options.job_id, .receiver_id = options.receiver_id},
                           .view = options.view,
                           .ranks = dir.ranks,
                           .key = std::move(access.key),
                           .pool = &parts.pool,
                           .poll = std::chrono::milliseconds(dir.poll_ms),
                           .before_read = std::move(access.before_read),
                           .before_read_required = dir.before_read_required,
                           .liveness = &parts.liveness,
                           .ahead_bytes_max = AheadBytesMax(last, options)},
                          *last.files, parts.subscription));
  return OkStatus();
}

const s3::S3FileSystem* SenderSide::store() const {
  const auto found =
      std::ranges::find_if(bases_, [](const SharedBase& b) { return b.store != nullptr; });
  return found == bases_.end() ? nullptr : found->store;
}

Senders& SenderSide::senders() {
  if (shared_ != nullptr) return *shared_;
  return *links_;
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
  cancellation_.Cancel();
  if (shared_ != nullptr) shared_->CancelFetches();
  links_->CancelFetches();
  if (peers_ != nullptr) peers_->CancelFetches();
}

void SenderSide::Stop() {
  // The last reports are written now, if the store answers.
  LoopThread limit([this]() -> Duration {
    stopping_.Cancel();
    return std::chrono::hours(1);
  });
  // A place before the last may be waited for, too.
  if (std::ranges::any_of(bases_, &SharedBase::is_remote)) limit.Start(kReportPatience);
  if (shared_ != nullptr) shared_->Stop();
  limit.Stop();
  links_->Stop();
}

}  // namespace dws
