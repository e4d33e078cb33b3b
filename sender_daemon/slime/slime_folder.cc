#include "sender_daemon/slime/slime_folder.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr const char* kOwnerFile = ".dws_publisher";

// Stands before the digest of a view's name.
constexpr char kViewMark = '~';

constexpr std::string_view kHiddenPrefix = ".weight_v";
constexpr std::string_view kNewEnding = ".new";
constexpr std::string_view kGoneEnding = ".gone";

}  // namespace

std::string SlimeStreamName(const RankState& state) {
  const std::string& view = state.layout().view();
  const std::string stream = ToString(state.stream);
  if (view.empty()) return stream;
  return fmt::format("{}{}{}", stream, kViewMark, ToString(DigestBytes(AsBytes(view), 0)));
}

std::string SlimeWriterName(const RankState& state) {
  return fmt::format("{:016x}{:016x}-{}", state.stream.id_hi, state.stream.id_lo,
                     state.rank_epoch.value());
}

SlimeFolder::SlimeFolder(FileSystem& files, std::string root, const RankState& state)
    : files_(files),
      root_(std::move(root)),
      self_{.stream = SlimeStreamName(state), .epoch = state.rank_epoch.value()},
      writer_(SlimeWriterName(state)) {}

std::string SlimeFolder::PathOf(uint64_t version) const {
  return root_ + "/" + slime::VersionFolderName(version);
}

Status SlimeFolder::Refuse(const std::string& whose) const {
  return FailedPreconditionError(
      "{}: {}, and this sender publishes stream {}: readers would take one run's versions for the "
      "other's; empty the folder, or name another as --slime-dir",
      root_, whose, self_.stream);
}

std::string SlimeFolder::Named(const std::string& other) const {
  const auto without_view = [](const std::string& name) {
    return name.substr(0, name.find(kViewMark));
  };
  if (without_view(other) != without_view(self_.stream)) return "stream " + other;
  return "this stream in another view (--slime-view was another when they were written)";
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
        "{} does not say which sender owns the folder, expected 'STREAM EPOCH': remove it if the "
        "folder has "
        "no versions, or name another folder as --slime-dir",
        path);
  }
  return owner;
}

Result<slime::VersionIndex> SlimeFolder::ReadOwnIndex(uint64_t version) const {
  const std::string name = slime::VersionFolderName(version);
  auto index = slime::ReadVersionIndex(files_, PathOf(version));
  if (absl::IsUnavailable(index.status())) {
    // A version of ours gets this name when it is complete, and loses it before its files are
    // removed.
    DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(PathOf(version)));
    if (!std::binary_search(names.begin(), names.end(), safetensors::kIndexFile)) {
      return Refuse(
          fmt::format("another process writes {} there, or left it without an index", name));
    }
  }
  DWS_RETURN_IF_ERROR(index.status());
  const std::string stream = index->Extra(slime::kStreamKey);
  if (stream == self_.stream) return index;
  return Refuse(fmt::format("its {} is {}", name,
                            stream.empty() ? "of another writer" : "of " + Named(stream)));
}

Status SlimeFolder::Take(const std::string& lost_to) {
  published_.clear();
  begun_.reset();
  DWS_RETURN_IF_ERROR(files_.MakeFolders(root_));
  DWS_ASSIGN_OR_RETURN(const Owner owner, ReadOwner());
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, slime::ListVersions(files_, root_));
  if (!owner.stream.empty() && owner.stream != self_.stream && !versions.empty()) {
    return Refuse(fmt::format("it has versions of {}", Named(owner.stream)));
  }
  if (!owner.stream.empty() && owner.stream == lost_to) return CheckOwner(owner);
  const bool ours = owner.stream == self_.stream;
  if (ours && owner.epoch > self_.epoch) return CheckOwner(owner);
  for (const uint64_t version : versions) {
    DWS_ASSIGN_OR_RETURN(const slime::VersionIndex index, ReadOwnIndex(version));
    published_[version] = !index.delta.has_value();
  }
  if (ours) RemoveUnfinished();  // unfinished versions may fill the disk
  DWS_RETURN_IF_ERROR(WriteOwner());
  if (!ours) RemoveUnfinished();
  return OkStatus();
}

Status SlimeFolder::WriteOwner() {
  const std::string self = fmt::format("{} {}\n", self_.stream, self_.epoch);
  return files_.ReplaceFile(root_ + "/" + kOwnerFile, AsBytes(self));
}

Status SlimeFolder::CheckOwner(const Owner& owner) const {
  if (owner.stream == self_.stream && owner.epoch == self_.epoch) return OkStatus();
  if (owner.stream.empty()) {
    return FailedPreconditionError(
        "{}: {} is missing, which shows that the folder is this sender's", root_, kOwnerFile);
  }
  return FailedPreconditionError(
      "{}: another sender publishes there now (stream {}, epoch {}; this one: stream {}, epoch "
      "{}): stop one of them, or give each its own --slime-dir",
      root_, owner.stream, owner.epoch, self_.stream, self_.epoch);
}

Result<std::string> SlimeFolder::OtherStream() const {
  DWS_ASSIGN_OR_RETURN(Owner owner, ReadOwner());
  return owner.stream == self_.stream ? std::string() : std::move(owner.stream);
}

Status SlimeFolder::CheckOwned() const {
  DWS_ASSIGN_OR_RETURN(const Owner owner, ReadOwner());
  return CheckOwner(owner);
}

Result<bool> SlimeFolder::Begin(uint64_t version) {
  DWS_RETURN_IF_ERROR(CheckOwned());
  RemoveUnfinished();
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, slime::ListVersions(files_, root_));
  const auto there = [&](uint64_t number) {
    return std::binary_search(versions.begin(), versions.end(), number);
  };
  // Starts at the full version that the next delta needs.
  for (auto kept = published_.rbegin(); kept != published_.rend(); ++kept) {
    if (!there(kept->first)) {
      return FailedPreconditionError(
          "{} is missing, and the newest version of this stream needs it: versions start again "
          "with a full one",
          PathOf(kept->first));
    }
    if (kept->second) break;
  }
  if (begun_.has_value() && there(*begun_)) {
    // A failed attempt had renamed it, and then could not sync the folder.
    DWS_ASSIGN_OR_RETURN(const slime::VersionIndex index, ReadOwnIndex(*begun_));
    DWS_RETURN_IF_ERROR(WriteOwner());
    Add(*begun_, !index.delta.has_value());
  }
  if (published_.contains(version)) return false;
  if (there(version)) {
    return FailedPreconditionError(
        "{} exists already, and is not this sender's: another process writes to the folder; stop "
        "it, or name another folder as --slime-dir",
        PathOf(version));
  }
  begun_ = version;
  return true;
}

Status SlimeFolder::Abandon(uint64_t version) {
  return RemoveHidden(slime::UnfinishedFolderName(version, writer_));
}

Status SlimeFolder::Discard(uint64_t version) {
  DWS_CHECK(published_.contains(version));
  const std::string gone = fmt::format(".{}{}", slime::VersionFolderName(version), kGoneEnding);
  DWS_RETURN_IF_ERROR(RemoveHidden(gone));
  const Status hidden = files_.Rename(PathOf(version), root_ + "/" + gone);
  if (!absl::IsNotFound(hidden)) DWS_RETURN_IF_ERROR(hidden);
  published_.erase(version);
  return RemoveHidden(gone);
}

void SlimeFolder::RemoveUnfinished() {
  const auto names = files_.List(root_);
  Status status = names.status();
  if (names.ok()) {
    for (const std::string& name : *names) {
      const bool hidden = name.starts_with(kHiddenPrefix) &&
                          (name.ends_with(kNewEnding) || name.ends_with(kGoneEnding));
      if (const Status removed = hidden ? RemoveHidden(name) : OkStatus(); !removed.ok()) {
        status = removed;
      }
    }
  }
  if (!status.ok()) LogWarning("slime_not_removed", {{"reason", Message(status)}});
}

Status SlimeFolder::RemoveHidden(std::string name) {
  const auto there = files_.List(root_ + "/" + name);
  if (absl::IsNotFound(there.status())) return OkStatus();
  DWS_RETURN_IF_ERROR(there.status());
  if (!name.ends_with(kGoneEnding)) {
    const std::string gone = fmt::format("{}{}", name, kGoneEnding);
    DWS_RETURN_IF_ERROR(RemoveHidden(gone));
    const Status hidden = files_.Rename(root_ + "/" + name, root_ + "/" + gone);
    if (absl::IsNotFound(hidden)) return OkStatus();  // it was published just now
    DWS_RETURN_IF_ERROR(hidden);
    name = gone;
  }
  const std::string path = root_ + "/" + name;
  for (const std::string& file : *there) DWS_RETURN_IF_ERROR(files_.Remove(path + "/" + file));
  const Status removed = files_.RemoveFolder(path);
  return absl::IsNotFound(removed) ? OkStatus() : removed;
}

size_t SlimeFolder::DeltasSinceFull() const {
  const auto full = std::find_if(published_.rbegin(), published_.rend(),
                                 [](const auto& version) { return version.second; });
  return std::distance(published_.rbegin(), full);
}

Status SlimeFolder::Retire(size_t keep) {
  if (keep == 0 || published_.size() <= keep) return OkStatus();
  auto first = std::prev(published_.end(), static_cast<std::ptrdiff_t>(keep));
  while (first != published_.begin() && !first->second) --first;
  std::vector<uint64_t> gone;
  for (auto version = published_.begin(); version != first; ++version) {
    gone.push_back(version->first);
  }
  DWS_CHECK(gone.empty() || (first->second && gone.back() < newest()));
  for (const uint64_t version : gone) DWS_RETURN_IF_ERROR(Discard(version));
  return OkStatus();
}

}  // namespace dws
