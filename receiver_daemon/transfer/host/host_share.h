// Receivers of one host share what they fetch: each delta is fetched by one of them, which leaves it
// in a folder of the host (host_folder.h), and read there by the others. Whatever goes wrong with the
// folder, the senders are asked instead. Full tensors are not shared.
//
// Which profile a delta has does not matter: each can be applied by every engine. A version whose
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
#include "common/base/threads/mutex.h"
#include "common/base/threads/pulse.h"
#include "common/model/host_limits.h"
#include "common/model/limits.h"
#include "receiver_daemon/transfer/host/host_folder.h"
#include "receiver_daemon/transfer/sender_group.h"

namespace dws {

// Lifecycle: of its own, nothing to start. Threads: safe from any.
class HostShare final : public SenderGroup {
 public:
  struct Options {
    std::string folder;
    uint64_t bytes_max = limits::kHostShareBytesDefault;  // of all files together
    std::string job_id;
    Pulse* pulse = nullptr;                         // waits while another receiver is waited for
    Duration wait_max = limits::kHostShareWaitMax;  // for another receiver
  };
  struct Totals {
    uint64_t read_bytes = 0;     // of objects taken from the folder
    uint64_t written_bytes = 0;  // of objects left there
    uint64_t failures = 0;       // of either: the senders were asked, or nothing was left
  };

  // Errors as HostFolder::Open's. `senders` outlives it.
  static Result<std::unique_ptr<HostShare>> Open(Options options, SenderGroup& senders);

  // Ends waits for other receivers, present and future, with CANCELLED.
  void CancelFetches();
  Totals totals() const;

  Result<Spool> FetchObject(const SyncTarget& target, TrainerRank rank, const DeltaWant& want,
                            Spool::Options spool) override;
  Result<std::optional<Spool>> TakeObject(const SyncTarget& target, TrainerRank rank,
                                          WeightVersion base,
                                          const Spool::Options& spool) override {
    return senders_.TakeObject(target, rank, base, spool);
  }
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override {
    return senders_.Describe(target, rank);
  }
  bool reads_early() const override { return senders_.reads_early(); }
  Result<FetchedFull> FetchFull(const SyncTarget& target, TrainerRank rank, const FullWant& want,
                                Spool::Options spool) override {
    return senders_.FetchFull(target, rank, want, std::move(spool));
  }
  void Staged(const SyncTarget& target, TrainerRank rank) override {
    senders_.Staged(target, rank);
  }
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override {
    senders_.Committed(target, rank, report);
  }
  // Removes what was refused from the folder too.
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override;

 private:
  HostShare(Options options, HostFolder folder, SenderGroup& senders)
      : options_(std::move(options)), folder_(std::move(folder)), senders_(senders) {}

  // The object, or else the lock with which to fetch it, or neither: fetch it without.
  struct Turn {
    std::optional<Spool> object;
    std::optional<UniqueFd> lock;
  };
  Result<Turn> Await(const HostKey& key, const Spool::Options& spool);
  // False: cancelled.
  bool Pause(Duration time);
  // Counts and, the first time, logs what goes wrong with the folder.
  void Note(const Status& status, WeightVersion version);
  void Remember(TrainerRank rank, const HostKey& key);

  const Options options_;
  const HostFolder folder_;
  SenderGroup& senders_;
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> failures_{0};
  std::atomic<bool> failing_{false};

  Mutex mutex_;
  CondVar cancel_changed_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  // By trainer rank: what was last read or written.
  std::map<TrainerRank, HostKey> last_ GUARDED_BY(mutex_);
};

}  // namespace dws
