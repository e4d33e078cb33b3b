// Publishes versions to a shared directory. This file has its flags and its part of the status;
// shared_publisher.h does the work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/service/config/config.h"
#include "sender_daemon/publish/lacking_views.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/shared/shared_publisher.h"

namespace dws {

void AddSharedFlags(CLI::App& app, SharedDirOptions& dir);
// `made`: the sender's --profile.
// `insecure`: its --insecure.
void FinishSharedFlags(Config& config, const SharedDirOptions& dir, ProfileChoice made,
                       bool insecure);

// The shared directory as the sender sees it.
class SharedSink final : public VersionSink {
 public:
  // Everything but `on_nack` and `on_damage` must outlive it; so must the objects that these two
  // use.
  struct Parts {
    FileSystem& files;
    ReceiverHub& hub;
    // A receiver reported there that it refused something, with this status code.
    std::function<void(uint32_t code)> on_nack;
    // A receiver refused these slices of the current version: our memory may be damaged.
    std::function<void(const RankStatePtr& state, std::vector<RankSlice> slices)> on_refused;
  };
  struct Options {
    SharedDirOptions dir;
    std::string job_id;
    TrainerRank trainer_rank;
    size_t versions_max = 64;
  };
  // Without a directory the sink exists and does nothing. Errors: the key, the command or the
  // folder cannot be used.
  static Result<std::unique_ptr<VersionSink>> Open(Options options, Parts parts);
  ~SharedSink() override { Stop(); }

  std::string_view name() const override { return "shared-dir"; }
  void Offer(const RankStatePtr& state) override;
  void OfferView(const RankStatePtr& view) override;
  void Refine(const RankStatePtr& state) override;
  bool settled() const override;
  std::optional<PlaceFailure> failure() const override;
  void Stop() override;
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  explicit SharedSink(Parts parts) : parts_(std::move(parts)) {}
  // The trainer's own tensors, or a view of them.
  struct Published {
    std::string view;  // empty: the trainer's own
    std::unique_ptr<SharedPublisher> publisher;
  };
  void OnRejected(const std::string& view, const v1::SharedReport& report, bool current) const;

  const Parts parts_;
  Cancellation stopping_;                    // requests to the store
  std::unique_ptr<s3::S3FileSystem> store_;  // null: the directory is one of this machine
  std::vector<Published> published_;         // none: no directory
  LackingViews lacking_;
};

}  // namespace dws
