// What an operator can make a sender do; see admin_operations.h.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/service/admin_operations.h"
#include "common/service/lifecycle.h"
#include "sender_daemon/receiver_hub.h"
#include "sender_daemon/trainer_session.h"

namespace dws {

// Lifecycle: all references outlive it. Threads: safe from any.
class SenderOperations final : public AdminOperations {
 public:
  struct Names {
    std::string job_id;
    uint32_t trainer_rank = 0;
  };
  struct Parts {
    const Lifecycle& lifecycle;
    const ReceiverHub& hub;
    const TrainerSession& session;
    const Clock& clock;
  };

  SenderOperations(Names names, Parts parts);

  void FillStatus(v1::StatusReply& reply) const override;
  Status Verify(const Sink& progress) override;
  Status Resync(const v1::ResyncRequest& request, const Sink& progress) override;
  Status Drain(const v1::DrainRequest& request, const Sink& progress) override;

 private:
  const Names names_;
  const Parts parts_;
  const TimePoint started_;
};

}  // namespace dws
