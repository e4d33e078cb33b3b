// Announces versions to the receivers that are connected.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  void OfferView(const RankStatePtr& view) override { hub_.Announce(view->layout().view()); }
  void Disconnect() override { hub_.Stop(); }
  void Stop() override { hub_.Stop(); }
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  using Entry = std::pair<const std::string, AnnouncerState::Receiver>;
  // The receivers that a status lists: present ones first, each by id. If there are too many, those
  // in trouble go before those that are behind `newest`, and these before the others.
  std::vector<const Entry*> Listed(const std::map<std::string, AnnouncerState::Receiver>& receivers,
                                   std::optional<WeightVersion> newest) const;

  ReceiverHub& hub_;
};

}  // namespace dws
