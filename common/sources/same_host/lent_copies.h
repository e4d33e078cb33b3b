// A sender's copies of its snapshot on GPUs of this host, lent to this process to read one version.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/lent_memory.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/service/peers/active_calls.h"
#include "common/service/sockets/unix_socket.h"
#include "common/spool/device_target.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// The copies of which one version is asked for.
struct CopiesWant {
  const StreamId& stream;
  const RankLayout& layout;
  WeightVersion version;
};

// Lifecycle: the loan, which the destructor returns. Threads: one at a time, but see LentMemory.
class LentCopies {
 public:
  using PeerCheck = std::function<Status(const grpc::ClientContext&)>;

  // Asks the sender whether its copies are of that version now. FAILED_PRECONDITION: it has none,
  // or is on another host, which stays so. ABORTED: they have another version, or none while they
  // are changed. UNIMPLEMENTED, UNAVAILABLE and other errors are the call's.
  static Status Ask(v1::SyncService::Stub& stub, ActiveCalls& calls, const PeerCheck& check_peer,
                    const CopiesWant& want);
  // Borrows the copies, from a handle socket of `users`, for the time that the sender says, which
  // counts from before the call. Nothing is mapped yet. Also returns the errors of TakePassed;
  // DATA_LOSS: what was passed does not fit; RESOURCE_EXHAUSTED: too many have borrowed them.
  static Result<LentCopies> Open(v1::SyncService::Stub& stub, ActiveCalls& calls,
                                 const PeerCheck& check_peer, const CopiesWant& want,
                                 const AllowedUsers& users, const Clock& clock);

  // Ascending within each copy; `expected` is not set.
  std::span<const LentSlice> slices() const { return slices_; }
  // "GPU-..., GPU-..."
  std::string devices() const;

 private:
  LentCopies() = default;
  // Adds the slices of a copy, which lie in the memory that was added last.
  Status AddSlices(const v1::GpuCopy& copy, const RankLayout& layout);

  UniqueFd connection_;  // closed last: then the memory may be freed
  std::vector<std::unique_ptr<cuda::LentMemory>> memory_;
  std::vector<LentSlice> slices_;
};

}  // namespace dws
