// A rank whose sender was restarted during an attempt may have two parts, of two epochs. Only the
// one of the higher epoch counts, also while it is not complete, as with receivers.
#include "sender_daemon/slime/parts_leader.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "sender_daemon/slime/slime_folder.h"

namespace dws {

PartsLeader::PartsLeader(FileSystem& files, Options options, const RankState& state)
    : files_(files),
      options_(std::move(options)),
      stream_(SlimeStreamName(state)),
      self_epoch_(state.rank_epoch.value()),
      world_size_(state.world_size) {}

Status PartsLeader::Write(const PartRequest& request) {
  written_.reset();
  const std::string text = MakePartRequest(request);
  DWS_RETURN_IF_ERROR(files_.ReplaceFile(options_.root + "/" + kPartRequestFile, AsBytes(text)));
  written_ = request;
  return OkStatus();
}

Status PartsLeader::Ask(WeightVersion version, PartKind kind, uint64_t attempt,
                        uint64_t published) {
  DWS_CHECK(kind != PartKind::kNone);
  complete_.clear();
  progress_at_ = std::chrono::steady_clock::now();
  request_ = {.stream = stream_,
              .epoch = self_epoch_,
              .attempt = attempt,
              .world_size = world_size_,
              .version = version.value(),
              .kind = kind,
              .encoding = options_.encoding,
              .checksum = options_.checksum,
              .published = published};
  const Status written = Write(request_);
  if (!written.ok()) Close();
  return written;
}

Status PartsLeader::Tell(uint64_t published) {
  PartRequest none = request_;
  none.stream = stream_;
  none.epoch = self_epoch_;
  none.world_size = world_size_;
  none.kind = PartKind::kNone;
  none.published = published;
  if (written_ == none) return OkStatus();
  return Write(none);
}

Status PartsLeader::Look() {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(options_.root));
  std::map<uint32_t, std::pair<uint64_t, std::string>> newest;  // by rank: epoch, folder
  for (const std::string& name : names) {
    const std::optional<PartOwner> owner = ParsePartFolder(request_, name);
    if (!owner.has_value() || owner->rank >= world_size_) continue;
    auto& known = newest[owner->rank];
    if (owner->epoch >= known.first) known = {owner->epoch, name};
  }
  size_t seen = 0;
  for (const auto& [rank, part] : newest) {
    const std::string folder = options_.root + "/" + part.second;
    const auto known = complete_.find(rank);
    if (known != complete_.end() && known->second.folder == folder) continue;
    complete_.erase(rank);
    const std::string refused = folder + "/" + kPartRefusedFile;
    const auto why = files_.ReadFile(refused, kPartRefusalBytesMax);
    if (why.ok()) {
      return AbortedError("rank {} cannot write its part of version {}: {}", rank, request_.version,
                          AsText(*why));
    }
    if (!absl::IsNotFound(why.status())) return why.status();
    auto read = slime::ReadPart(files_, folder, request_.version);
    if (absl::IsUnavailable(read.status())) {
      const auto files = files_.List(folder);
      if (files.ok()) seen += files->size();
      continue;
    }
    DWS_RETURN_IF_ERROR(read.status());
    complete_[rank] = *std::move(read);
  }
  seen += complete_.size();
  if (std::exchange(seen_, seen) != seen) progress_at_ = std::chrono::steady_clock::now();
  return OkStatus();
}

Result<std::optional<std::vector<slime::VersionPart>>> PartsLeader::Parts() {
  DWS_CHECK(open());
  DWS_RETURN_IF_ERROR(Look());
  if (complete_.size() == world_size_) {
    std::vector<slime::VersionPart> parts;
    for (const auto& [rank, part] : complete_) parts.push_back(part);
    return std::optional(std::move(parts));
  }
  const auto waited = std::chrono::steady_clock::now() - progress_at_;
  if (waited < options_.wait_max) return std::optional<std::vector<slime::VersionPart>>();
  // Another sender of rank 0 may have replaced it before it learned that the folder is ours.
  DWS_RETURN_IF_ERROR(Write(request_));
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < world_size_ && missing.size() < kPartRanksNamedMax; ++rank) {
    if (!complete_.contains(rank)) missing.push_back(rank);
  }
  return UnavailableError(
      "version {} waits for the parts of {} of {} ranks, {}{}: are their senders started with the "
      "same --slime-dir and --slime-view, on the same shared file system? their `dwsctl status` "
      "says why they do not write",
      request_.version, world_size_ - complete_.size(), world_size_, fmt::join(missing, ", "),
      missing.size() < world_size_ - complete_.size() ? ", ..." : "");
}

}  // namespace dws
