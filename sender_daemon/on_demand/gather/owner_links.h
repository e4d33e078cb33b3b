// The connections to the senders of all trainer ranks of the job, this rank's own too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/sources/sender/sender_link.h"
#include "common/transport/same_host/host_id.h"
#include "sender_daemon/on_demand/gather/owner_link.h"

namespace dws {

// Lifecycle: connects from its creation on; the destructor calls Stop. Threads: safe from any.
class OwnerLinks final : public SenderLinks {
 public:
  struct Options {
    std::string job_id;
    TrainerRank self;
    std::vector<std::string> addresses;  // of the senders, by rank
    PeerTls tls = {};
    std::string host_id = HostId();  // two processes with different ones count as two hosts
  };

  // INVALID_ARGUMENT: more owners than are supported, no such rank, or an address that is none.
  // `listener` and `clock` outlive it.
  static Result<std::unique_ptr<OwnerLinks>> Create(const Options& options, TrainListener& listener,
                                                    const Clock& clock);
  ~OwnerLinks() override;

  SenderLink& sender(const Piece& piece) const override { return owner(piece.rank); }
  OwnerLink& owner(TrainerRank rank) const { return *links_[rank.value()]; }
  uint32_t size() const { return static_cast<uint32_t>(links_.size()); }
  // Their names, by rank.
  std::vector<std::string> names() const;
  // Notified of each change of what an owner has registered or published.
  ChangeSignal& changed() { return changed_; }

  // Ends all connections and calls.
  void Stop();

 private:
  OwnerLinks(const Options& options, TrainListener& listener, const Clock& clock);

  ChangeSignal changed_;
  std::vector<std::unique_ptr<OwnerLink>> links_;  // by trainer rank
  LoopThread ticks_;
};

}  // namespace dws
