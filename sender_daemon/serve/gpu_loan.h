// Lends the copies of a snapshot in GPU memory to receivers of this host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/service/sockets/handle_socket.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

inline constexpr size_t kGpuLoansMax = 32;  // at a time: half of limits::kHandleConnectionsMax
inline constexpr std::chrono::seconds kGpuLoanTime{120};  // a receiver reads no longer than that

// Answers OpenGpuCopies. A copy that is lent stays allocated until the receiver's connection to
// the handle socket ends, whatever becomes of the trainer; captures go on changing it, also those
// of the next registration (left_copies.h). A connection that lasts longer than the loan is logged,
// once, and stays: the receiver may still have the memory mapped.
//
// Lifecycle: one for all services of a sender; Stop before `handles` ends. Threads: safe from any.
class GpuLoans {
 public:
  struct Options {
    std::chrono::seconds time = kGpuLoanTime;
    size_t loans_max = kGpuLoansMax;
  };
  explicit GpuLoans(HandleSocket& handles) : GpuLoans(handles, Options()) {}
  GpuLoans(HandleSocket& handles, const Options& options);

  using Done = std::function<void(const Status& status)>;
  // Answers for the rank that `state` is of, and calls `done` once, when `reply` is filled: at once
  // if there is nothing to lend or the request only asks, else on a thread of its own, which waits
  // for nothing but the driver. `peer`: the process that asks, if it asks over the unix socket.
  // `reply` stays valid until then. Errors: as OpenGpuCopies in sync.proto; UNIMPLEMENTED: the
  // memory cannot be shared; INTERNAL: the driver's error.
  void Answer(RankStatePtr state, const std::optional<UnixPeer>& peer,
              const v1::OpenGpuCopiesRequest& request, v1::OpenGpuCopiesReply& reply,
              const Done& done);

  // Ends the thread of its own; calls that wait for it are dropped. Loans go on.
  void Stop() { driver_.Stop(); }

 private:
  struct Loan;
  // Fills in `loan`, of which reply.copies tells, what is passed; then hands it to the handle
  // socket.
  Status Lend(const std::shared_ptr<Loan>& loan, const std::optional<UnixPeer>& peer,
              v1::OpenGpuCopiesReply& reply);

  HandleSocket& handles_;
  const Options options_;
  const std::shared_ptr<std::atomic<size_t>> open_;  // loans; they may end after this object
  Executor driver_;  // calls the driver, which may wait for a device
};

}  // namespace dws
