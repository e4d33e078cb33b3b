// Broadcasts the deltas of versions to the receivers that take part. broadcaster.h does the work.
#pragma once

#include <memory>

#include "common/transport/nccl/broadcast_parts.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/serve/broadcaster.h"

namespace dws {

// Its place in the order of sinks is before the announcements: a receiver has to know that a
// broadcast of the version comes before it fetches the version.
class BroadcastSink final : public VersionSink {
 public:
  // `clock` must outlive it. `timeout`: see Broadcaster.
  BroadcastSink(const BroadcastOptions& options, Duration timeout, const Clock& clock);

  // Null: broadcasts are off, or not available on this machine.
  Broadcaster* broadcaster() { return broadcaster_.get(); }

  std::string_view name() const override { return "broadcasts"; }
  void Offer(const RankStatePtr& state) override;
  void Disconnect() override { Stop(); }
  void Stop() override;
  void FillStatus(v1::SenderStatus& status) const override;

 private:
  std::unique_ptr<Broadcaster> broadcaster_;
};

}  // namespace dws
