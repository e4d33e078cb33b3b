// Full tensors from the engines of other receivers of the job, one receiver after the other, as the
// sender of trainer rank 0 says.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/active_calls.h"
#include "common/service/peers/peer_channel.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"
#include "receiver_daemon/transfer/peers/bad_peers.h"

namespace dws {

// A receiver that no longer has the version, is slow, fails, or whose bytes were wrong is
// left out for a while.
class PeerSource final : public Source {
 public:
  static constexpr std::string_view kName = "peer";
  struct Options {
    std::string job_id;
    PeerTls tls;  // as for senders; names of other receivers are the dialled hosts
  };
  // The others outlive it.
  PeerSource(SenderLinks& links, Options options, Cancellation& cancellation, const Clock& clock)
      : links_(links), options_(std::move(options)), cancellation_(cancellation), clock_(clock) {}

  std::string_view name() const override { return kName; }
  bool brings(Content content) const override { return content == Content::kFull; }
  // Waits while another receiver is about to have the version. FAILED_PRECONDITION: this receiver
  // is to read from the senders, or the senders name no others. CANCELLED: also if others have a
  // newer version by now, and nothing of this one was read from them.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

  // Ends its calls, present and future.
  void CancelFetches() { calls_.CancelForGood(); }

 private:
  std::shared_ptr<PeerChannel> ChannelTo(const std::string& address);
  // Reads from one receiver for a while. DATA_LOSS: slices were not as published.
  Status ReadFrom(const std::string& address, const Piece& piece, FullAssembly& assembly);
  // The sender has no answer because of `why`: what the read ends with.
  Status Unanswered(const Status& why, const VersionAt& at) const;
  void LeaveOut(const std::set<std::string>& addresses, const Status& why, const Piece& piece);

  SenderLinks& links_;
  const Options options_;
  Cancellation& cancellation_;
  const Clock& clock_;
  ActiveCalls calls_;
  BadPeers bad_;
  mutable Mutex mutex_;
  std::optional<VersionAt> reading_ GUARDED_BY(mutex_);  // of which something was read last
  std::map<std::string, std::shared_ptr<PeerChannel>> channels_ GUARDED_BY(mutex_);
};

}  // namespace dws
