// Publishes versions as slime's folders. This file has its flags and its part of the status;
// slime_publisher.h does the work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/service/config/config.h"
#include "sender_daemon/publish/lacking_views.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/slime/slime_publisher.h"

namespace dws {

void AddSlimeFlags(CLI::App& app, SlimeDirOptions& dir);
void FinishSlimeFlags(Config& config, const SlimeDirOptions& dir);

// The folder of slime's versions as the sender sees it.
class SlimeSink final : public VersionSink {
 public:
  // `files` and the objects that the functions use must outlive it.
  struct Parts {
    FileSystem& files;
    // Returns the current state of a view of the trainer's; null: it could not be made.
    std::function<RankStatePtr(const std::string& view)> view_state = {};
    std::function<void(const RankStatePtr&)> on_damage = {};  // see SlimePublisher
  };
  // Without a folder the sink exists and does nothing. INVALID_ARGUMENT: a folder without a base
  // checkpoint; other errors are those of reading the checkpoint.
  static Result<std::unique_ptr<VersionSink>> Open(const SlimeDirOptions& dir, Parts parts);

  std::string_view name() const override { return "slime-dir"; }
  // So that a layout that the format cannot hold is reported before the first version.
  void Welcome(const RankStatePtr& state) override {
    if (view_.empty()) Offer(state);
  }
  void WelcomeViews(const RankStatePtr& state) override {
    if (!view_.empty()) Offer(state);
  }
  void Offer(const RankStatePtr& state) override;
  bool settled() const override { return publisher_ == nullptr || publisher_->settled(); }
  std::optional<PlaceFailure> failure() const override;
  void Stop() override;
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  SlimeSink(std::string view, std::function<RankStatePtr(const std::string&)> view_state)
      : view_(std::move(view)), view_state_(std::move(view_state)) {}

  const std::string view_;  // empty: the trainer's own tensors
  const std::function<RankStatePtr(const std::string&)> view_state_;
  LackingViews lacking_;
  std::unique_ptr<SlimePublisher> publisher_;  // null: no folder
};

}  // namespace dws
