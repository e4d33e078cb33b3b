// A place that versions are published to: announcements to receivers, broadcasts, the shared
// directory, slime's folders. SenderApp::OpenSinks lists all of them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/admin.pb.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// One place. The sender offers each version to all places in turn, after it is recorded; a place
// that fails retries by itself and never delays publishing.
//
// Lifecycle: Disconnect, then Stop, before it is destroyed. Threads: safe from any.
class VersionSink {
 public:
  virtual ~VersionSink() = default;

  // For the log, and for the operator: "shared-dir", as its flag.
  virtual std::string_view name() const = 0;
  // A trainer has registered. `state` has no version of it yet.
  virtual void Welcome(const RankStatePtr& /*state*/) {}
  // The views that are kept have begun for the state of that Welcome, or could not be made.
  virtual void WelcomeViews(const RankStatePtr& /*state*/) {}
  // `state` has the newest version in a finer layout, and no older version. Never blocks. A place
  // may wait for the next version.
  virtual void Refine(const RankStatePtr& /*state*/) {}
  // `state` has a new version. Never blocks.
  virtual void Offer(const RankStatePtr& state) = 0;
  // A view has the trainer's newest version later than the trainer's own state. Never blocks.
  virtual void OfferView(const RankStatePtr& /*view*/) {}
  // Everything offered is published, or was tried and failed.
  virtual bool settled() const { return true; }
  // Returns the failure that prevents publishing; nullopt: none is known.
  virtual std::optional<PlaceFailure> failure() const { return std::nullopt; }

  // The sender is shutting down: ends the connections and calls of peers. Later offers are still
  // allowed.
  virtual void Disconnect() {}
  // After Stop nothing is offered.
  virtual void Stop() = 0;

  // Fills in its own part of the status, which the place's metrics are read from too. Does not
  // block.
  virtual void FillStatus(v1::SenderStatus& status) const = 0;
};

// In the order in which each is offered a version.
using VersionSinks = std::vector<std::unique_ptr<VersionSink>>;

}  // namespace dws
