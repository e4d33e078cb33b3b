// Receivers of one host share what they fetch: each delta is fetched by one of them, which leaves
// it in a folder of the host (host_folder.h), and read there by the others. Whatever goes wrong
// with the folder, the next source is read instead. Full tensors are not shared.
//
// The profile of a delta does not matter: every engine can apply each profile. A version whose
// state token its sender has not announced is not shared, because its number may have been used
// before.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/model/host_limits.h"
#include "common/model/limits.h"
#include "common/sources/source.h"
#include "receiver_daemon/transfer/host/host_folder.h"

namespace dws {

// Lifecycle: of its own, nothing to start. Threads: safe from any.
class HostShare final : public Source {
 public:
  struct Options {
    std::string folder;
    uint64_t bytes_max = limits::kHostShareBytesDefault;  // of all files together
    std::string job_id;
    Duration wait_max = limits::kHostShareWaitMax;  // for another receiver
  };
  struct Totals {
    uint64_t read_bytes = 0;     // of objects taken from the folder
    uint64_t written_bytes = 0;  // of objects left there
    uint64_t failures = 0;       // of either: another source was read, or nothing was left
  };

  // Errors as HostFolder::Open's. `cancellation` outlives it: ends waits for other receivers.
  static Result<std::unique_ptr<HostShare>> Open(Options options, Cancellation& cancellation);

  Totals totals() const;

  std::string_view name() const override { return "host-share"; }
  bool brings(Content content) const override { return content == Content::kDelta; }
  // What the folder has; else this receiver may fetch it, and `keep` leaves it in the folder.
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;
  // Removes the refused object from the folder.
  void Refused(const Piece& piece) override;

 private:
  HostShare(Options options, HostFolder folder, Cancellation& cancellation)
      : options_(std::move(options)), folder_(std::move(folder)), cancellation_(cancellation) {}

  // The object, or else the lock with which to fetch it.
  struct Turn {
    std::optional<Spool> object;
    UniqueFd lock;
  };
  Result<Turn> Await(const HostKey& key, const Spool::Options& spool);
  // Called after this receiver has fetched the object with the lock.
  void Leave(TrainerRank rank, const HostKey& key, const Spool& object);
  void Remember(TrainerRank rank, const HostKey& key);

  const Options options_;
  const HostFolder folder_;
  Cancellation& cancellation_;
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> failures_{0};
  std::atomic<bool> failing_{false};  // the last write failed

  Mutex mutex_;
  // By trainer rank: what was last read or written.
  std::map<TrainerRank, HostKey> last_ GUARDED_BY(mutex_);
};

}  // namespace dws
