// Publishes versions as slime's folders. This file has its flags and its part of the status;
// slime_publisher.h does the work.
#pragma once

#include <functional>
#include <memory>

#include "common/service/config/config.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/slime/slime_publisher.h"

namespace dws {

void AddSlimeFlags(CLI::App& app, SlimeDirOptions& dir);
void FinishSlimeFlags(Config& config, const SlimeDirOptions& dir);

// The folder of slime's versions as the sender sees it.
class SlimeSink final : public VersionSink {
 public:
  // Without a folder the sink exists and does nothing. `on_damage`: see SlimePublisher. `files` and
  // the objects that `on_damage` uses must outlive it. INVALID_ARGUMENT: a folder without a base
  // checkpoint; other errors are those of reading the checkpoint.
  static Result<std::unique_ptr<VersionSink>> Open(
      const SlimeDirOptions& dir, FileSystem& files,
      std::function<void(const RankStatePtr&)> on_damage);

  std::string_view name() const override { return "slime-dir"; }
  // So that a layout that the format cannot hold is reported before the first version.
  void Welcome(const RankStatePtr& state) override { Offer(state); }
  void Offer(const RankStatePtr& state) override;
  bool settled() const override { return publisher_ == nullptr || publisher_->settled(); }
  std::optional<PlaceFailure> failure() const override {
    return publisher_ == nullptr ? std::nullopt : publisher_->failure();
  }
  void Stop() override;
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  SlimeSink() = default;

  std::unique_ptr<SlimePublisher> publisher_;  // null: no folder
};

}  // namespace dws
