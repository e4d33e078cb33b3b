// What a sender publishes to beside announcing versions: a shared directory, slime's folders.
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "sender_daemon/sender_app.h"

namespace dws {

Status SenderApp::StartShared() {
  if (options_.shared_dir.root.empty()) return OkStatus();
  SharedPublisher::Options options{.dir = options_.shared_dir,
                                   .job_id = options_.job_id,
                                   .trainer_rank = TrainerRank(options_.trainer_rank),
                                   .versions_max = options_.retain_versions};
  if (!options.dir.key_file.empty()) {
    DWS_ASSIGN_OR_RETURN(options.key, shared::LoadKey(files_, options.dir.key_file));
  }
  if (!options.dir.after_write.empty()) {
    DWS_ASSIGN_OR_RETURN(auto words, shared::SplitCommand(options.dir.after_write));
    options.after_write = shared::VisibilityHook(std::move(words), options.dir.root);
  }
  DWS_RETURN_IF_ERROR(
      SharedRankFolder(options.dir.root, options.job_id, options.trainer_rank).status());
  shared_publisher_ = std::make_unique<SharedPublisher>(
      std::move(options), files_, *hub_, [this](const v1::SharedReport& report, bool current) {
        metrics_.OnNack(report.rejected_code());
        const auto stream = FromProto(report.stream());
        const RankStatePtr state = hub_->Current();
        const bool digests = current && stream.ok() && report.rejected_slices_size() > 0;
        if (!digests || state == nullptr || state->stream != *stream) return;
        std::vector<RankSlice> slices(report.rejected_slices().begin(),
                                      report.rejected_slices().end());
        recheck_->Ask(state, std::move(slices));
      });
  shared_publisher_->Start();
  return OkStatus();
}

Status SenderApp::StartSlime() {
  const SlimeDirOptions& dir = options_.slime_dir;
  if (dir.root.empty()) return OkStatus();
  if (dir.checkpoint.empty()) {
    return InvalidArgumentError(
        "--slime-dir needs --slime-checkpoint, the folder of the base checkpoint: readers take a "
        "full version for all of a checkpoint, config.json and tokenizer too");
  }
  DWS_ASSIGN_OR_RETURN(BaseCheckpoint base, ReadBaseCheckpoint(files_, dir.checkpoint));
  slime_publisher_ = std::make_unique<SlimePublisher>(
      SlimePublisher::Options{.dir = dir,
                              .base = std::move(base),
                              .on_damage =
                                  [this](const RankStatePtr& state) {
                                    std::vector<RankSlice> slices;
                                    for (uint32_t i = 0; i < state->layout().slice_count(); ++i) {
                                      slices.emplace_back(i);
                                    }
                                    recheck_->Ask(state, std::move(slices));
                                  }},
      files_);
  slime_publisher_->Start();
  return OkStatus();
}

SharedView SenderApp::ViewShared() const {
  return shared_publisher_ == nullptr ? SharedView() : shared_publisher_->view();
}

SlimeView SenderApp::ViewSlime() const {
  return slime_publisher_ == nullptr ? SlimeView() : slime_publisher_->view();
}

}  // namespace dws
