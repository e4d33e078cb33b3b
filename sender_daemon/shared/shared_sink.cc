#include "sender_daemon/shared/shared_sink.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "common/model/identity_limits.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/quantise/view.h"
#include "common/service/program/store_flags.h"
#include "common/transport/http_files/http_file_system.h"
#include "common/transport/shared_fs/names.h"
#include "common/transport/shared_fs/visibility_hook.h"

namespace dws {

void AddSharedFlags(CLI::App& app, SharedDirOptions& dir) {
  app.add_option(
         "--shared-dir", dir.root,
         "Directory on a shared filesystem, or in an S3-compatible store, to publish to as well; "
         "receivers may need nothing else")
      ->type_name("PATH|s3://BUCKET/PREFIX");
  AddStoreFlags(app, dir.store);
  app.add_option("--shared-dir-key", dir.key_file,
                 "File with the key that signs the files there; the receivers have the same")
      ->type_name("PATH");
  app.add_option("--shared-dir-anchor-every", dir.anchor_every,
                 "Full tensors there at least every so many versions")
      ->check(CLI::Range(size_t{1}, limits::kSharedChainMax))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--shared-dir-first", [&dir](const std::string& has) { dir.from_base = has == "base"; },
         "What the first version of a stream there has: full tensors, or digests only, for "
         "receivers "
         "that have loaded the same checkpoint; full tensors then come when one asks for them")
      ->check(CLI::IsMember({"full", "base"}).description(""))
      ->type_name("full|base")
      ->default_str("full");
  app.add_option_function<std::string>(
         "--shared-dir-profile",
         [&dir](const std::string& name) {
           dir.profile = name == "fast" ? DeltaProfile::kFast : DeltaProfile::kWan;
         },
         "Encoding of the deltas there: the smallest (wan), which a receiver decodes over all of "
         "its old weights, or for a directory that is as fast as memory (fast)")
      ->check(CLI::IsMember({"wan", "fast"}).description(""))
      ->type_name("wan|fast")
      ->default_str(std::string(ToString(ProfileChoice::kWan)));
  app.add_option("--shared-view", dir.views,
                 "A view to publish there besides, for receivers with the same --view; once for "
                 "each view")
      ->type_name("RECIPE[,except=PATTERN...]")
      ->allow_extra_args(false);
  app.add_option("--shared-after-write", dir.after_write,
                 "Command to run after each version there (DWS_SHARED_DIR and DWS_VERSION are set)")
      ->type_name("COMMAND")
      ->check(CLI::Validator(shared::WhyNoCommand, "", "command"));
  app.add_flag("--shared-after-write-required", dir.after_write_required,
               "A version counts as published there only when that command has succeeded");
}

void FinishSharedFlags(Config& config, const SharedDirOptions& dir, ProfileChoice made,
                       bool insecure) {
  const bool makes_wan = Decided(made).value_or(DeltaProfile::kWan) == DeltaProfile::kWan;
  if (!makes_wan) config.Derive("shared-dir-profile", "fast");
  if (!makes_wan && dir.WantsWan()) {
    config.Reject(
        "shared-dir-profile",
        fmt::format("wan encodings are not made with --profile={}: give auto or wan there, "
                    "or fast here",
                    ToString(made)));
  }
  if (IsHttpBase(dir.root)) {
    config.Reject(
        "shared-dir",
        fmt::format("{} can only be read, and a sender writes: give it the directory that "
                    "this server serves, or a store; receivers read there",
                    dir.root));
  } else {
    FinishStoreFlags(config, {dir.root}, dir.store, insecure);
  }
  if (dir.root.empty() && !dir.views.empty()) {
    config.Reject("shared-view", "there is no --shared-dir to write to");
  }
  if (dir.views.size() > limits::kViewsFollowedMax) {
    config.Reject("shared-view", fmt::format("{} views, at most {} are supported", dir.views.size(),
                                             limits::kViewsFollowedMax));
  }
  for (const std::string& view : dir.views) {
    if (const Status known = quantise::ParseView(view).status(); !known.ok()) {
      config.Reject("shared-view", Message(known));
    } else if (std::ranges::count(dir.views, view) > 1) {
      config.Reject("shared-view", fmt::format("'{}' is given twice", view));
    }
  }
  if (dir.root.empty() && !dir.after_write.empty()) {
    config.Reject("shared-after-write", "there is no --shared-dir to write to");
  }
  if (dir.after_write_required && dir.after_write.empty()) {
    config.Reject("shared-after-write-required", "there is no --shared-after-write");
  }
}

Result<std::unique_ptr<VersionSink>> SharedSink::Open(Options options, Parts parts) {
  std::unique_ptr<SharedSink> sink(new SharedSink(std::move(parts)));
  if (options.dir.root.empty()) return std::unique_ptr<VersionSink>(std::move(sink));
  if (IsStore(options.dir.root)) {
    DWS_ASSIGN_OR_RETURN(sink->store_, OpenStore(options.dir.root, options.dir.store,
                                                 sink->stopping_, sink->stopping_));
  }
  FileSystem& files = sink->parts_.files;
  SharedPublisher::Options publisher{.dir = options.dir,
                                     .job_id = options.job_id,
                                     .trainer_rank = options.trainer_rank,
                                     .versions_max = options.versions_max};
  if (!options.dir.key_file.empty()) {
    DWS_ASSIGN_OR_RETURN(publisher.key, shared::LoadKey(files, options.dir.key_file));
  }
  DWS_ASSIGN_OR_RETURN(publisher.after_write,
                       shared::VisibilityHook::Make(options.dir.after_write, options.dir.root));
  // Checked now, although the folder is made later: a bad id is a mistake of the configuration.
  DWS_RETURN_IF_ERROR(
      SharedRankFolder(options.dir.root, options.job_id, options.trainer_rank).status());
  FileSystem* const place = sink->store_ != nullptr ? sink->store_.get() : &files;
  if (sink->store_ != nullptr) {
    publisher.clean = [store = sink->store_.get()](const std::string& folder) {
      return store->AbortUploads(folder);
    };
  }
  std::vector<std::string> views = options.dir.views;
  views.insert(views.begin(), "");
  for (const std::string& view : views) {
    publisher.view = view;
    publisher.dir.root = shared::RootOfView(options.dir.root, view);
    sink->published_.push_back(
        {.view = view,
         .publisher = std::make_unique<SharedPublisher>(
             publisher, *place, sink->parts_.hub,
             [raw = sink.get(), view](const v1::SharedReport& report, bool current) {
               raw->OnRejected(view, report, current);
             })});
    sink->published_.back().publisher->Start();
  }
  return std::unique_ptr<VersionSink>(std::move(sink));
}

void SharedSink::OnRejected(const std::string& view, const v1::SharedReport& report,
                            bool current) const {
  parts_.on_nack(report.rejected_code());
  const auto stream = FromProto(report.stream());
  const RankStatePtr state = parts_.hub.Current(view);
  const bool digests = current && stream.ok() && report.rejected_slices_size() > 0;
  if (!digests || state == nullptr || state->stream != *stream) return;
  parts_.on_refused(state, {report.rejected_slices().begin(), report.rejected_slices().end()});
}

void SharedSink::Refine(const RankStatePtr& state) {
  // Views in finer layouts are made later, and come with the next version.
  if (!published_.empty()) published_.front().publisher->Offer(state);
}

void SharedSink::Offer(const RankStatePtr& state) {
  for (const auto& [view, publisher] : published_) {
    const RankStatePtr offered = view.empty() ? state : parts_.hub.Current(view);
    lacking_.Note(view, offered == nullptr);
    if (offered != nullptr) publisher->Offer(offered);
  }
}

void SharedSink::OfferView(const RankStatePtr& view) {
  for (const auto& [name, publisher] : published_) {
    if (name == view->layout().view()) publisher->Offer(view);
  }
}

bool SharedSink::settled() const {
  return std::ranges::all_of(published_, [](const auto& of) { return of.publisher->settled(); });
}

std::optional<PlaceFailure> SharedSink::failure() const {
  for (const auto& [view, publisher] : published_) {
    auto failure = publisher->failure();
    if (failure.has_value()) return std::move(*failure).Of(view);
  }
  return lacking_.failure();
}

void SharedSink::Stop() {
  stopping_.Cancel();
  for (const Published& of : published_) of.publisher->Stop();
}

void SharedSink::FillStatus(v1::SenderStatus& status) const {
  if (published_.empty()) return;
  if (store_ != nullptr) FillStoreStatus(*store_, RealClock().Now(), *status.mutable_store());
  v1::SharedStatus& shared = *status.mutable_shared();
  shared.set_folder(published_.front().publisher->view().folder);
  std::optional<WeightVersion> newest;  // of which everything is there
  uint32_t receivers = 0;
  for (const auto& [view, publisher] : published_) {
    const SharedView of = publisher->view();
    const WeightVersion there = of.newest.value_or(WeightVersion(0));
    newest = std::min(newest.value_or(there), there);
    receivers += static_cast<uint32_t>(of.receivers);
    shared.set_anchors(shared.anchors() + of.anchors);
    shared.set_deltas(shared.deltas() + of.deltas);
    shared.set_bases(shared.bases() + of.bases);
    shared.set_written_bytes(shared.written_bytes() + of.bytes);
    shared.set_failures(shared.failures() + of.failures);
  }
  shared.set_newest_version(newest->value());
  shared.set_receivers(receivers);
  const PlaceFailure failing = failure().value_or(PlaceFailure());
  shared.set_failing(failing.reason);
  shared.set_seconds_failing(ToSeconds(failing.lasts));
}

}  // namespace dws
