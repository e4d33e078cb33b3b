#include "sender_daemon/shared/shared_sink.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/program/store_flags.h"
#include "common/transport/http_files/http_file_system.h"
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
  sink->publisher_ = std::make_unique<SharedPublisher>(
      std::move(publisher), *place, sink->parts_.hub,
      [raw = sink.get()](const v1::SharedReport& report, bool current) {
        raw->OnRejected(report, current);
      });
  sink->publisher_->Start();
  return std::unique_ptr<VersionSink>(std::move(sink));
}

void SharedSink::OnRejected(const v1::SharedReport& report, bool current) const {
  parts_.on_nack(report.rejected_code());
  const auto stream = FromProto(report.stream());
  const RankStatePtr state = parts_.hub.Current();
  const bool digests = current && stream.ok() && report.rejected_slices_size() > 0;
  if (!digests || state == nullptr || state->stream != *stream) return;
  parts_.on_refused(state, {report.rejected_slices().begin(), report.rejected_slices().end()});
}

void SharedSink::Offer(const RankStatePtr& state) {
  if (publisher_ != nullptr) publisher_->Offer(state);
}

void SharedSink::Stop() {
  stopping_.Cancel();
  if (publisher_ != nullptr) publisher_->Stop();
}

void SharedSink::FillStatus(v1::SenderStatus& status) const {
  if (publisher_ == nullptr) return;
  if (store_ != nullptr) FillStoreStatus(*store_, RealClock().Now(), *status.mutable_store());
  const SharedView view = publisher_->view();
  v1::SharedStatus& shared = *status.mutable_shared();
  shared.set_folder(view.folder);
  shared.set_newest_version(view.newest.value_or(WeightVersion(0)).value());
  shared.set_receivers(static_cast<uint32_t>(view.receivers));
  shared.set_failing(std::string(Message(view.trouble)));
  shared.set_anchors(view.anchors);
  shared.set_deltas(view.deltas);
  shared.set_bases(view.bases);
  shared.set_written_bytes(view.bytes);
  shared.set_failures(view.failures);
  shared.set_seconds_failing(ToSeconds(failure().value_or(PlaceFailure()).lasts));
}

}  // namespace dws
