#include "sender_daemon/slime/slime_folder.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr const char* kOwnerFile = ".dws_publisher";

std::string GoneFolderName(uint64_t version) {
  return "." + slime::VersionFolderName(version) + ".gone";
}

}  // namespace

SlimeFolder::SlimeFolder(FileSystem& files, std::string root, const RankState& state)
    : files_(files),
      root_(std::move(root)),
      self_{.stream = ToString(state.stream), .epoch = state.rank_epoch.value()} {}

std::string SlimeFolder::PathOf(uint64_t version) const {
  return root_ + "/" + slime::VersionFolderName(version);
}

Status SlimeFolder::Refuse(const std::string& whose) const {
  return FailedPreconditionError(
      "{}: {}, and this sender publishes stream {}: readers would take one run's versions for the "
      "other's; empty the folder, or name another as --slime-dir",
      root_, whose, self_.stream);
}

Result<SlimeFolder::Owner> SlimeFolder::ReadOwner() const {
  const std::string path = root_ + "/" + kOwnerFile;
  const auto content = files_.ReadFile(path, limits::kSlimeOwnerBytesMax);
  if (absl::IsNotFound(content.status())) return Owner{};
  DWS_RETURN_IF_ERROR(content.status());
  const std::string_view text = AsText(*content);
  const size_t space = text.find(' ');
  Owner owner{.stream = std::string(text.substr(0, space))};
  const char* const end = text.data() + text.size();
  const bool parsed = space != std::string_view::npos && text.ends_with('\n') &&
                      std::from_chars(text.data() + space + 1, end, owner.epoch).ptr == end - 1;
  if (!parsed || owner.stream.empty()) {
    return FailedPreconditionError(
        "{} does not say whose the folder is, expected 'STREAM EPOCH': remove it if the folder has "
        "no versions, or name another folder as --slime-dir",
        path);
  }
  return owner;
}

Status SlimeFolder::Take() {
  published_.clear();
  begun_.clear();
  DWS_RETURN_IF_ERROR(files_.MakeFolders(root_));
  DWS_ASSIGN_OR_RETURN(const Owner owner, ReadOwner());
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, slime::ListVersions(files_, root_));
  if (!owner.stream.empty() && owner.stream != self_.stream && !versions.empty()) {
    return Refuse(fmt::format("it has versions of stream {}", owner.stream));
  }
  if (owner.stream == self_.stream && owner.epoch > self_.epoch) return CheckOwner(owner);
  std::vector<uint64_t> unfinished;
  for (const uint64_t version : versions) {
    const auto index = slime::ReadVersionIndex(files_, PathOf(version));
    if (absl::IsUnavailable(index.status())) {
      if (owner.stream.empty()) {
        return Refuse(fmt::format("somebody writes {} there", slime::VersionFolderName(version)));
      }
      unfinished.push_back(version);
      continue;
    }
    DWS_RETURN_IF_ERROR(index.status());
    const auto stream = index->extra.find(kSlimeStreamKey);
    if (stream == index->extra.end() || stream->second != self_.stream) {
      return Refuse(fmt::format(
          "its {} is {}", slime::VersionFolderName(version),
          stream == index->extra.end() ? "of another writer" : "of stream " + stream->second));
    }
    published_[version] = !index->delta.has_value();
  }
  const std::string self = fmt::format("{} {}\n", self_.stream, self_.epoch);
  DWS_RETURN_IF_ERROR(files_.ReplaceFile(root_ + "/" + kOwnerFile, AsBytes(self)));
  for (const uint64_t version : unfinished) DWS_RETURN_IF_ERROR(Discard(version));
  return RemoveLeftovers();
}

Status SlimeFolder::CheckOwner(const Owner& owner) const {
  if (owner.stream == self_.stream && owner.epoch == self_.epoch) return OkStatus();
  return FailedPreconditionError(
      "{}: another sender publishes there by now (stream {}, epoch {}; this one: stream {}, epoch "
      "{}): stop one of them, or give each a --slime-dir of its own",
      root_, owner.stream.empty() ? "unknown" : owner.stream, owner.epoch, self_.stream,
      self_.epoch);
}

Status SlimeFolder::CheckOwned() const {
  DWS_ASSIGN_OR_RETURN(const Owner owner, ReadOwner());
  return CheckOwner(owner);
}

Status SlimeFolder::Begin(uint64_t version) {
  DWS_RETURN_IF_ERROR(CheckOwned());
  if (begun_.contains(version)) DWS_RETURN_IF_ERROR(Discard(version));  // as far as it came
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, slime::ListVersions(files_, root_));
  if (std::binary_search(versions.begin(), versions.end(), version)) {
    return FailedPreconditionError(
        "{} is there already, and not of this sender: somebody else writes to the folder; stop "
        "them, or name another folder as --slime-dir",
        PathOf(version));
  }
  begun_.insert(version);
  return OkStatus();
}

Status SlimeFolder::Discard(uint64_t version) {
  const std::string gone = GoneFolderName(version);
  DWS_RETURN_IF_ERROR(RemoveHidden(gone));
  const Status hidden = files_.Rename(PathOf(version), root_ + "/" + gone);
  if (!absl::IsNotFound(hidden)) DWS_RETURN_IF_ERROR(hidden);
  published_.erase(version);
  begun_.erase(version);
  DWS_RETURN_IF_ERROR(RemoveHidden(gone));
  return RemoveHidden(slime::UnfinishedFolderName(version));
}

Status SlimeFolder::RemoveLeftovers() {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(root_));
  for (const std::string& name : names) {
    const bool ours =
        name.starts_with(".weight_v") && (name.ends_with(".new") || name.ends_with(".gone"));
    if (ours) DWS_RETURN_IF_ERROR(RemoveHidden(name));
  }
  return OkStatus();
}

Status SlimeFolder::RemoveHidden(const std::string& name) {
  const std::string path = root_ + "/" + name;
  const auto names = files_.List(path);
  if (absl::IsNotFound(names.status())) return OkStatus();
  DWS_RETURN_IF_ERROR(names.status());
  for (const std::string& file : *names) DWS_RETURN_IF_ERROR(files_.Remove(path + "/" + file));
  const Status removed = files_.RemoveFolder(path);
  return absl::IsNotFound(removed) ? OkStatus() : removed;
}

Status SlimeFolder::Retire(size_t keep) {
  if (keep == 0) return OkStatus();
  size_t deltas = 0;
  auto first = published_.end();  // the oldest delta that stays
  for (auto version = published_.rbegin(); version != published_.rend() && deltas < keep;
       ++version) {
    if (version->second) continue;
    ++deltas;
    first = std::prev(version.base());
  }
  std::vector<uint64_t> gone;
  bool full_stays = false;
  for (auto version = std::make_reverse_iterator(first); version != published_.rend(); ++version) {
    if (version->second && !std::exchange(full_stays, true)) continue;
    gone.push_back(version->first);
  }
  for (auto version = gone.rbegin(); version != gone.rend(); ++version) {
    DWS_RETURN_IF_ERROR(Discard(*version));
  }
  return OkStatus();
}

}  // namespace dws
