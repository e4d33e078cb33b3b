// Full tensors from the engines of other receivers of the job, one receiver after the other, as the
// sender of trainer rank 0 says.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
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
    PeerTls tls;        // as for senders; names of other receivers are the dialled hosts
    bool only = false;  // no other source may bring full tensors
  };
  // The others outlive it.
  PeerSource(SenderLinks& links, Options options, Cancellation& cancellation, const Clock& clock)
      : links_(links), options_(std::move(options)), cancellation_(cancellation), clock_(clock) {}

  std::string_view name() const override { return kName; }
  bool brings(Content content) const override { return content == Content::kFull; }
  // Waits while another receiver is about to have the version. FAILED_PRECONDITION: this receiver
  // is to read from the senders. UNAVAILABLE: no other one has brought it. CANCELLED: also if it is
  // to read a newer version, which others have.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

  // Ends its calls, present and future.
  void CancelFetches() { calls_.CancelForGood(); }

 private:
  std::shared_ptr<PeerChannel> ChannelTo(const std::string& address);
  // Asks the sender of trainer rank 0 once.
  Result<Fetcher::PeerAnswer> Ask(const Piece& piece, std::span<const std::string> without,
                                  bool failed);
  // Returns whether this version was to be read from the senders before; once of an attempt.
  bool HasFailed(const Piece& piece);
  // The pieces of a version wait together: returns how long this one waits before it asks; zero: it
  // asks now.
  Duration WaitBeforeAsking(const VersionAt& at);
  // The sender was not to be asked until now.
  void NotSilent();
  // Returns whether a sender that does not answer has been silent for too long.
  bool IsSilent() const;
  // The sender has answered; nullopt: no wait.
  void AfterAnswer(const VersionAt& at, std::optional<Duration> wait);
  // Reads from one receiver for a while. DATA_LOSS: slices were not as published.
  Status ReadFrom(const std::string& address, const Piece& piece, FullAssembly& assembly);
  // A read from `address` has failed: `brought` may have brought a part of incomplete slices.
  void LeaveOut(const std::string& address, const std::set<std::string>& brought, const Status& why,
                const Piece& piece);

  SenderLinks& links_;
  const Options options_;
  Cancellation& cancellation_;
  const Clock& clock_;
  ActiveCalls calls_;
  BadPeers bad_;
  mutable Mutex mutex_;
  std::optional<VersionAt> begun_ GUARDED_BY(mutex_);  // of which others have sent something
  std::map<TrainerRank, VersionAt> granted_ GUARDED_BY(mutex_);  // to be read from the senders
  std::optional<VersionAt> waits_for_ GUARDED_BY(mutex_);
  TimePoint waits_until_ GUARDED_BY(mutex_);
  TimePoint answered_ GUARDED_BY(mutex_);  // the sender answered last, or was not to be asked
  std::map<std::string, std::shared_ptr<PeerChannel>> channels_ GUARDED_BY(mutex_);
};

}  // namespace dws
