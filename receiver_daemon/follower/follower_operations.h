// An operator's operations on a receiver that follows a folder of versions; see
// admin_operations.h.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/service/grpc/admin_operations.h"
#include "common/service/lifecycle.h"
#include "common/service/peers/receiver_name.h"
#include "receiver_daemon/follower/slime_follower.h"

namespace dws {

// Lifecycle: all references must outlive it. Threads: safe from any.
class FollowerOperations final : public AdminOperations {
 public:
  // The things that it follows, for the status.
  struct Followed {
    std::string folder;
    std::string checkpoint;
    std::string engine;  // its URL; empty: none
  };

  FollowerOperations(ReceiverName name, Followed followed, const Lifecycle& lifecycle,
                     SlimeFollower& follower, const Clock& clock)
      : name_(std::move(name)),
        followed_(std::move(followed)),
        lifecycle_(lifecycle),
        follower_(follower),
        clock_(clock),
        started_(clock.Now()) {}

  void FillStatus(v1::StatusReply& reply) const override;
  // Compares every byte of the local checkpoint with its digests, and the engine's checksum of its
  // weights with the one before. DATA_LOSS: names the tensors, or the engine.
  Status Verify(const Sink& progress) override;
  // FAILED_PRECONDITION, always: a folder cannot serve a version's full tensors.
  Status Resync(const v1::ResyncRequest& request, const Sink& progress) override;
  Status Drain(const v1::DrainRequest& request, const Sink& progress) override;
  Status Evict(const v1::EvictRequest& request, const Sink& progress) override;
  Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& progress) override;

 private:
  const ReceiverName name_;
  const Followed followed_;
  const Lifecycle& lifecycle_;
  SlimeFollower& follower_;
  const Clock& clock_;
  const TimePoint started_;
};

}  // namespace dws
