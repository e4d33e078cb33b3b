// Senders known through a shared directory only: looks at each trainer rank's folder every now and
// then, feeds what is there to the Subscription, is the source of its versions, and takes reports.
// A rank's folder is its sender: SenderIndex and TrainerRank are the same numbers. Where the
// directory has several copies (shared_copies.h), the last is written to, and asked for what the
// others do not bring.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/shared/shared_copies.h"
#include "receiver_daemon/transfer/shared/shared_reporter.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// Lifecycle: Start, then Stop, which cancels everything and waits for it. Threads: safe from any.
class SharedLinks final : public Senders, public Source {
 public:
  // A copy of the directory.
  struct Copy {
    std::string root;
    FileSystem* files = nullptr;  // outlives the links; never null
    bool is_remote = false;       // see SharedSource
  };
  struct Options {
    std::string root;
    bool is_remote = false;         // see SharedSource
    std::vector<Copy> before = {};  // asked before it, in this order
    std::string source_name = std::string(kSharedDirName);
    ReceiverName name;
    std::string view = {};  // empty: the trainer's own tensors
    uint32_t ranks = 1;
    shared::Key key;
    ThreadPool* pool = nullptr;  // not owned; never null
    Duration poll = limits::kSharedPollDefault;
    shared::VisibilityHook before_read = {};
    bool before_read_required = false;  // a look fails with it
    Liveness* liveness = nullptr;       // waits while a description is waited for
    Duration retry_delay = limits::kSharedRetryDelayMin;
    uint64_t ahead_bytes_max = 0;  // see SharedPlace
  };

  // `files` and `subscription` outlive it; the subscription has `ranks` senders. INVALID_ARGUMENT:
  // an id makes no file's name.
  static Result<std::unique_ptr<SharedLinks>> Create(Options options, FileSystem& files,
                                                     Subscription& subscription);
  ~SharedLinks() override;

  void Start();
  // Looks at every folder as if for the first time.
  void Reconnect();
  // Ends blocking calls, present and future, with CANCELLED. Reports still go.
  void CancelFetches();
  void Stop();

  std::string_view name() const override { return options_.source_name; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override;
  void Staged(const SyncTarget& target, TrainerRank rank) override;
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override;
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override;

 private:
  // One rank as the polling thread has last seen it.
  struct Link {
    std::unique_ptr<SharedCopies> copies;  // the root's is the last
    std::string folder;                    // of the last
    bool connected = false;
    std::optional<std::pair<StreamId, RankEpoch>> welcomed;
    bool refused = false;
    std::vector<WeightVersion> announced;
    uint64_t nonce = 0;
    std::string trouble;  // logged last
  };

  SharedLinks(Options options, Subscription& subscription);
  // Looks at all ranks once.
  void Look();
  // If `may_read` is an error, the look fails with it.
  void Poll(SenderIndex index, Link& link, const Status& may_read);
  bool Note(Link& link, const Status& status);
  // What is known of the link's rank.
  SharedCopies::Seen SeenOf(const Link& link) const;
  // If `status` is DATA_LOSS, reports the lost or damaged file to the sender, even if nothing was
  // rejected.
  void NoteDamage(const SyncTarget& target, TrainerRank rank, const Status& status);
  // The directory lacks full tensors, as `lacking` says: asks their sender for them. Always returns
  // UNAVAILABLE, which says so and names what differs.
  Status Ask(const Piece& piece, const FullAssembly& assembly, const Status& lacking);
  SharedSource& Last(const SyncTarget& target, TrainerRank rank) {
    return links_[rank.value()].copies->Last(target);
  }

  const Options options_;
  Subscription& subscription_;
  std::vector<Link> links_;  // by rank
  std::unique_ptr<SharedReporter> reporter_;
  std::string hook_trouble_;
  Cancellation cancellation_;  // of reads
  Mutex mutex_;
  bool reconnect_ GUARDED_BY(mutex_) = false;
  LoopThread loop_;
};

}  // namespace dws
