#include "receiver_daemon/transfer/shared/shared_source.h"

#include <algorithm>
#include <utility>

#include "common/model/clock_bound.h"
#include "common/proto_convert/convert.h"
#include "common/sources/sender/welcome.h"
#include "common/transport/shared_fs/verified_file.h"
#include "proto/sync.pb.h"
#include "receiver_daemon/transfer/shared/shared_files.h"

namespace dws {
namespace {

constexpr uint64_t kMessageBytesMax = static_cast<uint64_t>(limits::kGrpcMessageBytesMax);

// Returns whether another attempt may succeed: the sender may not have finished, or this host may
// not see its files yet.
bool MayPass(const Status& status, bool is_remote) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) ||
         (!is_remote && absl::IsUnavailable(status));
}

// Why nothing can be offered; OK: there is nothing yet.
Status WhyNone(const shared::VersionCatalog& catalog) {
  DWS_RETURN_IF_ERROR(catalog.trouble());
  const shared::ManifestPtr newest = catalog.versions().Newest();
  if (newest == nullptr) return OkStatus();
  return UnavailableError(
      "{} has {} versions up to {}, but no full tensors lead to them: its sender has to publish "
      "some",
      catalog.place().folder, catalog.versions().all().size(), newest->name.version.value());
}

// Keeps the first error.
void Note(const Status& status, Status& first) {
  if (first.ok()) first = status;
}

Spool::Options GuardedBy(const Spool::Options& options, std::function<bool()> wanted) {
  Spool::Options guarded = options;
  guarded.wanted = std::move(wanted);
  return guarded;
}

}  // namespace

Result<std::string> SharedSource::Folder() const {
  DWS_ASSIGN_OR_RETURN(const std::string job, shared::EscapeId(options_.job_id));
  return fmt::format("{}/{}/{}", shared::RootOfView(options_.root, options_.view), job,
                     shared::RankName(options_.rank));
}

Status SharedSource::CheckClaims(const std::vector<StreamId>& streams,
                                 const std::optional<StreamId>& followed,
                                 const std::string& folder) const {
  for (size_t i = 1; i < streams.size(); ++i) {
    if (streams[i].incarnation != streams[i - 1].incarnation) continue;
    if (followed == streams[i] || followed == streams[i - 1]) continue;
    if (followed.has_value() && followed->incarnation > streams[i].incarnation) continue;
    return FailedPreconditionError(
        "{} has streams {} and {}: two trainers claim one incarnation; stop one of them and remove "
        "its folder",
        folder, ToString(streams[i - 1]), ToString(streams[i]));
  }
  return OkStatus();
}

Status SharedSource::TakeOutAhead(std::vector<StreamId>& streams,
                                  const std::optional<StreamId>& followed,
                                  const std::string& folder) const {
  const UnixTime now = options_.wall_clock->Now();
  Status first;
  std::erase_if(streams, [&](const StreamId& stream) {
    if (stream == followed) return false;
    const std::string ahead = AheadOfClock(stream, now);
    if (ahead.empty()) return false;
    Note(UnavailableError("{} has stream {}, which is refused: {}; or remove its folder", folder,
                          ToString(stream), ahead),
         first);
    return true;
  });
  return first;
}

Result<SharedSource::Offer> SharedSource::Look(const std::optional<StreamId>& followed) {
  DWS_ASSIGN_OR_RETURN(const std::string folder, Folder());
  auto listed = shared::ListStreams(files_, folder);
  if (!listed.ok()) return UnavailableError("{}", Message(listed.status()));
  std::vector<StreamId> streams = *std::move(listed);
  const Status ahead = TakeOutAhead(streams, followed, folder);
  DWS_RETURN_IF_ERROR(CheckClaims(streams, followed, folder));
  if (followed.has_value()) {
    // If two streams have the followed stream's incarnation, keeps only the followed one.
    std::erase_if(streams, [&](const StreamId& stream) {
      return stream.incarnation == followed->incarnation && stream != *followed;
    });
  }
  Status first = ahead;
  for (auto stream = streams.rbegin(); stream != streams.rend(); ++stream) {
    auto offer = LookAt(folder, *stream);
    if (offer.ok() && offer->has_value()) {
      Note(ahead, (*offer)->trouble);
      return **std::move(offer);
    }
    Note(offer.status(), first);
  }
  DWS_RETURN_IF_ERROR(first);
  if (options_.view.empty()) {
    return UnavailableError("no version has been published in {} yet", folder);
  }
  return UnavailableError(
      "no version of view '{}' has been published yet, expected one in {}: start the senders with "
      "--shared-view={}, in the same spelling",
      options_.view, folder, options_.view);
}

Result<std::optional<SharedSource::Offer>> SharedSource::LookAt(const std::string& rank_folder,
                                                                const StreamId& stream) {
  Offer offer;
  shared::ManifestPtr newest;
  std::string folder;
  {
    MutexLock lock(mutex_);
    if (!catalog_.has_value() || catalog_->place().stream != stream) {
      shared::VersionCatalog catalog(
          files_, {.job_id = options_.job_id,
                   .rank = options_.rank,
                   .stream = stream,
                   .folder = fmt::format("{}/{}", rank_folder, shared::StreamName(stream)),
                   .key = options_.key});
      DWS_RETURN_IF_ERROR(catalog.Refresh(options_.on_progress));
      if (catalog.versions().Reachable(1).empty()) {
        // What was offered before stays known.
        DWS_RETURN_IF_ERROR(WhyNone(catalog));
        return std::optional<Offer>();
      }
      catalog_.emplace(std::move(catalog));
    } else {
      DWS_RETURN_IF_ERROR(catalog_->Refresh(options_.on_progress));
    }
    folder = catalog_->place().folder;
    offer.versions = catalog_->versions().Reachable(limits::kRetainedVersionsMax);
    offer.trouble = catalog_->trouble();
    if (offer.versions.empty()) {
      DWS_RETURN_IF_ERROR(WhyNone(*catalog_));
      return std::optional<Offer>();
    }
    const WeightVersion last = catalog_->versions().NewestOfNewestEpoch().version;
    if (offer.trouble.ok() && last > offer.versions.back()) {
      offer.trouble = catalog_->versions().FromAnchor(last).status();
    }
    newest = catalog_->versions().Find(offer.versions.back());
  }
  offer.newest_token = newest->state_token;
  DWS_ASSIGN_OR_RETURN(offer.welcome, ReadWelcome(*newest, folder));
  return std::optional<Offer>(std::move(offer));
}

Result<SenderWelcome> SharedSource::ReadWelcome(const shared::Manifest& manifest,
                                                const std::string& folder) {
  if (welcome_.has_value() && welcome_->first == manifest.welcome &&
      welcome_->second.stream == manifest.stream) {
    return welcome_->second;
  }
  DWS_ASSIGN_OR_RETURN(const auto bytes,
                       shared::ReadVerified(files_, folder, manifest.welcome, kMessageBytesMax));
  v1::Welcome message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLossError("{}/{} is not a Welcome", folder, manifest.welcome.name);
  }
  DWS_ASSIGN_OR_RETURN(SenderWelcome welcome,
                       ParseWelcome(message, options_.job_id, options_.view));
  if (welcome.stream != manifest.stream || welcome.trainer_rank != manifest.trainer_rank ||
      welcome.rank_epoch != manifest.name.epoch) {
    return DataLossError("{}/{} is of stream {}, rank {}, epoch {}; version {} is not", folder,
                         manifest.welcome.name, ToString(welcome.stream),
                         welcome.trainer_rank.value(), welcome.rank_epoch.value(),
                         manifest.name.version.value());
  }
  welcome_.emplace(manifest.welcome, welcome);
  return welcome;
}

bool SharedSource::Has(const StreamId& stream, WeightVersion version) const {
  MutexLock lock(mutex_);
  return catalog_.has_value() && catalog_->place().stream == stream &&
         catalog_->versions().Find(version) != nullptr;
}

SharedPlace SharedSource::PlaceOf(const Known& known) {
  const shared::ManifestPtr anchor = known.versions.NewestAnchor();
  return {.files = files_,
          .pool = *options_.pool,
          .stream_folder = known.folder,
          .newest_anchor = anchor == nullptr ? WeightVersion(0) : anchor->name.version,
          .ahead_bytes_max = options_.ahead_bytes_max};
}

Result<SharedSource::Known> SharedSource::Versions(const StreamId& stream) {
  MutexLock lock(mutex_);
  if (!catalog_.has_value() || catalog_->place().stream != stream) {
    return AbortedError("the shared directory has no versions of stream {}", ToString(stream));
  }
  DWS_RETURN_IF_ERROR(catalog_->Refresh());
  return Known{.versions = catalog_->versions(), .folder = catalog_->place().folder};
}

void SharedSource::Forget(const StreamId& stream, WeightVersion from, WeightVersion to) {
  MutexLock lock(mutex_);
  if (!catalog_.has_value() || catalog_->place().stream != stream) return;
  const shared::VersionSet known = catalog_->versions();  // a copy: it shrinks meanwhile
  for (const auto& [name, manifest] : known.all()) {
    if (name.version >= from && name.version <= to) catalog_->Forget(name.version);
  }
}

template <typename T, typename Attempt>
Result<T> SharedSource::Retry(const StreamId& stream, WeightVersion from, WeightVersion to,
                              const Attempt& attempt) {
  Duration delay = options_.retry_delay;
  for (int tried = 1;; ++tried) {
    if (cancellation_.cancelled()) return CancelledError("the receiver is shutting down");
    auto known = Versions(stream);
    if (!known.ok()) return known.status();
    Result<T> result = attempt(*known);
    if (result.ok()) return result;
    Forget(stream, from, to);
    if (!MayPass(result.status(), options_.is_remote)) return result;
    if (tried == limits::kSharedReadAttemptsMax) {
      if (!absl::IsNotFound(result.status())) return result;
      return DataLossError("{}: its version's manifest names it", Message(result.status()));
    }
    if (!cancellation_.Sleep(delay)) return CancelledError("the receiver is shutting down");
    delay *= 2;
  }
}

Result<Spool> SharedSource::Object(const StreamId& stream, WeightVersion version,
                                   const RankLayout& layout, const DeltaWant& want,
                                   const Spool::Options& spool) {
  const auto wanted = [this, asked = spool.wanted] {
    return !cancellation_.cancelled() && (!asked || asked());
  };
  const WeightVersion first(want.base.value() + 1);
  return Retry<Spool>(stream, first, version, [&](const Known& known) -> Result<Spool> {
    DWS_ASSIGN_OR_RETURN(const auto chain, known.versions.Chain(want.base, version));
    return ReadSharedObject(PlaceOf(known), chain, layout, want, GuardedBy(spool, wanted));
  });
}

Result<Description> SharedSource::Describe(const StreamId& stream, WeightVersion version) {
  return Retry<Description>(
      stream, version, version, [&](const Known& known) -> Result<Description> {
        const shared::ManifestPtr manifest = known.versions.Find(version);
        if (manifest == nullptr) {
          return AbortedError("version {} is not in {} (any more); take a newer one",
                              version.value(), known.folder);
        }
        const SharedPlace place = PlaceOf(known);
        const std::string folder = place.FolderOf(*manifest);
        const auto read = shared::ReadVerified(
            files_, folder, *manifest->Find(shared::kDescriptionName), kMessageBytesMax);
        if (!read.ok()) return place.Explain(read.status(), *manifest);
        const std::vector<std::byte>& bytes = *read;
        v1::DescribeReply message;
        if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
          return DataLossError("{}/{} is not a DescribeReply", folder, shared::kDescriptionName);
        }
        Description description{.slices = {}, .state_token = FromProto(message.state_token())};
        for (const v1::Digest& digest : message.slices()) {
          description.slices.push_back(FromProto(digest));
        }
        return description;
      });
}

Status SharedSource::Full(const StreamId& stream, WeightVersion version, FullAssembly& assembly) {
  const auto wanted = [this] { return !cancellation_.cancelled(); };
  const auto attempt = [&](const Known& known) -> Result<bool> {
    DWS_ASSIGN_OR_RETURN(const auto path, known.versions.FromAnchor(version));
    DWS_RETURN_IF_ERROR(ReadSharedFull(PlaceOf(known), path, wanted, assembly));
    return true;
  };
  const auto full = Retry<bool>(stream, WeightVersion(1), version, attempt);
  if (!absl::IsFailedPrecondition(full.status())) return full.status();
  // Full tensors may have been added to a version whose manifest was read before that.
  return Retry<bool>(stream, WeightVersion(1), version, attempt).status();
}

}  // namespace dws
