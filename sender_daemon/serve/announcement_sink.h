// Announces versions to the receivers that are connected.
#pragma once

#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/serve/receiver_hub.h"

namespace dws {

// `hub` must outlive it.
class AnnouncementSink final : public VersionSink {
 public:
  explicit AnnouncementSink(ReceiverHub& hub) : hub_(hub) {}

  std::string_view name() const override { return "receivers"; }
  void Welcome(const RankStatePtr& state) override { hub_.Welcome(state); }
  void Refine(const RankStatePtr& state) override { hub_.Welcome(state); }
  // The receivers' announcements are made from the hub's current state when they are written.
  void Offer(const RankStatePtr& /*state*/) override { hub_.Announce(); }
  void Disconnect() override { hub_.Stop(); }
  void Stop() override { hub_.Stop(); }
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  ReceiverHub& hub_;
};

}  // namespace dws
