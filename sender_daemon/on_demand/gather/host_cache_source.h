// Weights of a rank of another host, from the sender on this host that keeps them for all of its
// ranks. Which one that is follows from a hash, the same for all; if its room is used up, the next
// one is asked.
#pragma once

#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/sources/source.h"
#include "sender_daemon/on_demand/gather/host_cache.h"

namespace dws {

class HostCacheSource final : public Source {
 public:
  // `own`: the cache of this sender. All outlive it.
  HostCacheSource(HostCache& own, OwnerLinks& links, ThreadPool& pool)
      : own_(own), links_(links), pool_(pool) {}

  std::string_view name() const override { return "host-cache"; }
  bool brings(Content content) const override { return content == Content::kFull; }
  // FAILED_PRECONDITION: the rank is on this host, or no sender of this host has room for it.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

 private:
  // The copies of one rank that one sender keeps, as this process maps them.
  struct Mapped {
    Digest layout;
    uint64_t id = 0;
    std::shared_ptr<const SnapshotMemory> memory;
  };
  // Senders of this host that keep weights, the one that the hash names first.
  std::vector<TrainerRank> Keepers(TrainerRank owner, RankSlice first) const;
  Result<std::shared_ptr<const SnapshotMemory>> Ask(TrainerRank keeper, const HostCache::Want& want,
                                                    const FullAssembly& assembly);
  Result<std::shared_ptr<const SnapshotMemory>> AskOwn(const HostCache::Want& want,
                                                       const FullAssembly& assembly);
  Result<std::shared_ptr<const SnapshotMemory>> AskOther(TrainerRank keeper,
                                                         const HostCache::Want& want,
                                                         const FullAssembly& assembly);

  HostCache& own_;
  OwnerLinks& links_;
  ThreadPool& pool_;
  Mutex mutex_;
  std::map<std::pair<TrainerRank, TrainerRank>, Mapped> mapped_ GUARDED_BY(mutex_);
  // Keepers that have no room for the slices of a rank that begin with this one, in this stream.
  StreamId full_stream_ GUARDED_BY(mutex_);
  std::set<std::tuple<TrainerRank, TrainerRank, RankSlice>> full_ GUARDED_BY(mutex_);
};

}  // namespace dws
