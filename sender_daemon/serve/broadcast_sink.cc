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
}

void BroadcastSink::Show(Scrape& scrape) const {
  const BroadcastView view = broadcaster_ == nullptr ? BroadcastView() : broadcaster_->view();
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  constexpr const char* kHelp =
      "Versions by the outcome of their broadcast; receivers fetch those that were not sent.";
  const char* const name = "dws_sender_broadcasts_total";
  scrape.Counter(name, kHelp, number(view.sent), {{"outcome", "sent"}});
  scrape.Counter(name, kHelp, number(view.failed), {{"outcome", "failed"}});
  scrape.Counter(name, kHelp, number(view.skipped), {{"outcome", "skipped"}});
  scrape.Counter("dws_sender_broadcast_bytes_total",
                 "Bytes of objects that were broadcast, each counted once for all receivers.",
                 number(view.sent_bytes));
  scrape.Counter("dws_sender_broadcast_epochs_failed_total",
                 "Epochs of broadcasts that ended with a failure or a receiver's loss.",
                 number(view.epochs_failed));
  scrape.Gauge("dws_sender_broadcast_epoch", "The epoch that is ready; 0: none.",
               number(view.epoch));
  constexpr const char* kReceivers =
      "Receivers that can take part in broadcasts, and those in the epoch that is ready.";
  scrape.Gauge("dws_sender_broadcast_receivers", kReceivers, number(view.receivers),
               {{"state", "able"}});
  scrape.Gauge("dws_sender_broadcast_receivers", kReceivers, number(view.members),
               {{"state", "joined"}});
}

}  // namespace dws
