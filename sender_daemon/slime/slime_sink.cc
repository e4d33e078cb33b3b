#include "sender_daemon/slime/slime_sink.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/quantise/view.h"

namespace dws {

void AddSlimeFlags(CLI::App& app, SlimeDirOptions& dir) {
  app.add_option("--slime-dir", dir.root,
                 "Folder to publish slime's versions to as well (weight_vNNNNNN), for readers of "
                 "that format")
      ->type_name("PATH");
  app.add_option("--slime-checkpoint", dir.checkpoint,
                 "With --slime-dir: the base checkpoint; full versions also get its files that are "
                 "not weights")
      ->type_name("PATH");
  app.add_option(
         "--slime-view", dir.view,
         "The view to publish there in place of the trainer's own tensors, for engines that "
         "serve a quantised checkpoint; --slime-checkpoint is that checkpoint")
      ->type_name("RECIPE[,except=PATTERN...]");
  app.add_option_function<std::string>(
         "--slime-encoding",
         [&dir](const std::string& name) { dir.encoding = *slime::EncodingNamed(name); },
         "How changed tensors are written there")
      ->check(CLI::IsMember({"xor", "overwrite"}).description(""))
      ->type_name("xor|overwrite")
      ->default_str("xor");
  app.add_option_function<std::string>(
         "--slime-checksum",
         [&dir](const std::string& name) { dir.checksum = *slime::ChecksumFormatNamed(name); },
         "Checksum of their new bytes")
      ->check(CLI::IsMember({"xxh3-128", "blake3", "adler32"}).description(""))
      ->type_name("xxh3-128|blake3|adler32")
      ->default_str("xxh3-128");
  app.add_option_function<std::string>(
         "--slime-first", [&dir](const std::string& is) { dir.from_base = is == "base"; },
         "What the first version there is: a full checkpoint, or, if its number is 1, a delta of "
         "--slime-checkpoint, from which readers start")
      ->check(CLI::IsMember({"full", "base"}).description(""))
      ->type_name("full|base")
      ->default_str("full");
  app.add_option(
         "--slime-keep", dir.keep,
         "Versions to keep there, from the full checkpoint that the oldest of them builds on; "
         "after as many deltas a version is a full checkpoint; 0: all")
      ->check(CLI::Range(size_t{0}, size_t{limits::kSlimeVersionMax}))
      ->capture_default_str();
  app.add_option("--slime-after-write", dir.after_write,
                 "With --slime-dir: command to run after each version there (DWS_SHARED_DIR and "
                 "DWS_VERSION are set)")
      ->type_name("COMMAND")
      ->check(CLI::Validator(shared::WhyNoCommand, "", "command"));
  app.add_flag("--slime-after-write-required", dir.after_write_required,
               "A version counts as published there only when that command has succeeded");
}

void FinishSlimeFlags(Config& config, const SlimeDirOptions& dir) {
  if (dir.root.empty() && !dir.after_write.empty()) {
    config.Reject("slime-after-write", "there is no --slime-dir to write to");
  }
  if (dir.after_write_required && dir.after_write.empty()) {
    config.Reject("slime-after-write-required", "there is no --slime-after-write");
  }
  if (dir.view.empty()) return;
  if (const Status known = quantise::ParseView(dir.view).status(); !known.ok()) {
    config.Reject("slime-view", Message(known));
  } else if (dir.root.empty()) {
    config.Reject("slime-view", "there is no --slime-dir to write to");
  }
}

Result<std::unique_ptr<VersionSink>> SlimeSink::Open(const SlimeDirOptions& dir, Parts parts) {
  std::unique_ptr<SlimeSink> sink(new SlimeSink(dir.view, std::move(parts.view_state)));
  if (dir.root.empty()) return std::unique_ptr<VersionSink>(std::move(sink));
  // Without the checkpoint the first full version would lack the tokenizer and config.json, and no
  // engine could load it.
  if (dir.checkpoint.empty()) {
    return InvalidArgumentError(
        "--slime-dir needs --slime-checkpoint, the folder of the base checkpoint: readers take a "
        "full version as a whole checkpoint, with config.json and tokenizer");
  }
  DWS_ASSIGN_OR_RETURN(BaseCheckpoint base, ReadBaseCheckpoint(parts.files, dir.checkpoint));
  DWS_ASSIGN_OR_RETURN(shared::VisibilityHook after_write,
                       shared::VisibilityHook::Make(dir.after_write, dir.root));
  sink->publisher_ = std::make_unique<SlimePublisher>(
      SlimePublisher::Options{.dir = dir,
                              .base = std::move(base),
                              .after_write = std::move(after_write),
                              .on_damage = std::move(parts.on_damage)},
      parts.files);
  sink->publisher_->Start();
  return std::unique_ptr<VersionSink>(std::move(sink));
}

void SlimeSink::Offer(const RankStatePtr& state) {
  if (publisher_ == nullptr) return;
  const RankStatePtr offered = view_.empty() ? state : view_state_(view_);
  lacking_.Note(view_, offered == nullptr);
  if (offered != nullptr) publisher_->Offer(offered);
}

std::optional<PlaceFailure> SlimeSink::failure() const {
  if (publisher_ == nullptr) return std::nullopt;
  if (auto lacking = lacking_.failure(); lacking.has_value()) return lacking;
  auto failure = publisher_->failure();
  if (!failure.has_value()) return std::nullopt;
  return std::move(*failure).Of(view_);
}

void SlimeSink::Stop() {
  if (publisher_ != nullptr) publisher_->Stop();
}

void SlimeSink::FillStatus(v1::SenderStatus& status) const {
  if (publisher_ == nullptr) return;
  const SlimeView view = publisher_->view();
  DWS_CHECK(view.fulls <= view.versions);
  v1::SlimeStatus& slime = *status.mutable_slime();
  slime.set_folder(view.folder);
  slime.set_newest_version(view.newest.value_or(WeightVersion(0)).value());
  slime.set_versions(view.versions);
  slime.set_full_versions(view.fulls);
  slime.set_delta_versions(view.versions - view.fulls);
  slime.set_written_bytes(view.bytes);
  slime.set_failures(view.failures);
  const PlaceFailure failing = failure().value_or(PlaceFailure());
  slime.set_failing(failing.reason);
  slime.set_seconds_failing(ToSeconds(failing.lasts));
}

}  // namespace dws
