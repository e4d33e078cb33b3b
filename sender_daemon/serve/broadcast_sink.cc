#include "sender_daemon/serve/broadcast_sink.h"

#include <optional>
#include <utility>

namespace dws {

BroadcastSink::BroadcastSink(const BroadcastOptions& options, Duration timeout,
                             const Clock& clock) {
  if (auto parts = OpenBroadcasts(options, clock); parts.has_value()) {
    broadcaster_ = std::make_unique<Broadcaster>(*std::move(parts), timeout);
  }
}

// The state's newest version: Offer comes once for each version, right after it was recorded.
void BroadcastSink::Offer(const RankStatePtr& state) {
  if (broadcaster_ != nullptr) broadcaster_->Offer(state->stream, state->log->Newest());
}

void BroadcastSink::Stop() {
  if (broadcaster_ != nullptr) broadcaster_->Stop();
}

void BroadcastSink::FillStatus(v1::SenderStatus& status) const {
  if (broadcaster_ == nullptr) return;
  const BroadcastView view = broadcaster_->view();
  v1::BroadcastStatus& broadcast = *status.mutable_broadcast();
  broadcast.set_epoch(view.epoch);
  broadcast.set_members(static_cast<uint32_t>(view.members));
  broadcast.set_broadcasts(view.sent);
  broadcast.set_failed(view.failed);
  broadcast.set_skipped(view.skipped);
  broadcast.set_sent_bytes(view.sent_bytes);
  broadcast.set_epochs_failed(view.epochs_failed);
  broadcast.set_able_receivers(static_cast<uint32_t>(view.receivers));
}

}  // namespace dws
