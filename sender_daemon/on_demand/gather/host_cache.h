// What this sender keeps of other hosts' ranks for the ranks of its own host: for each of those
// ranks a copy of its snapshot, of which only the slices are there that somebody has asked for. The
// stamps of its blocks say which version they have, and nothing is known of a block that no stamp
// names.
//
// Slices that were asked for together have their bytes until the trainer registers again. Each
// version is fetched once: by the delta from the version that is there, or in full. What comes when
// the bytes are used up is never kept: units are asked for in the same order again and again, and
// to let go of the oldest one then would leave none that is still there when it is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/transport/same_host/snapshot_memory.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/gather/part_reader.h"

namespace dws {

// Lifecycle: Stop, or the destructor, ends what is fetched. Threads: safe from any; no call blocks
// for long.
class HostCache {
 public:
  struct Options {
    uint64_t bytes_max = 0;  // 0: it keeps nothing
    FabricChoice fabric = {};
    std::string spool_folder;
  };
  // Slices of one rank at a version that it has published.
  struct Want {
    VersionAt at;
    TrainerRank owner;
    Digest layout;                  // of the owner
    std::vector<RankSlice> slices;  // ascending, not empty
  };
  struct Counts {
    uint64_t held_bytes = 0;     // room that slices have
    uint64_t fetched_bytes = 0;  // since the start
  };
  using Copy = std::shared_ptr<SnapshotMemory>;
  using Done = std::function<void(Result<Copy> copy)>;

  // `owners` and `clock` outlive it.
  HostCache(Options options, OwnerLinks& owners, const Clock& clock);
  ~HostCache() { Stop(); }

  // Calls `done` once, perhaps at once, with the copy that has the slices: blocks whose stamps are
  // of exactly this version (AllBy). INVALID_ARGUMENT: no such rank, or slices.
  // FAILED_PRECONDITION: it keeps nothing, or the slices cross others that were asked for.
  // RESOURCE_EXHAUSTED: there is no room, which stays so as long as the stream. ABORTED: the owner
  // has another layout, or the copy a later version. UNAVAILABLE: the owner has not registered or
  // published yet. Others: those of PartReader::Read.
  void Bring(const Want& want, Done done);
  void Stop();
  Counts counts() const;

 private:
  // Slices that are fetched together.
  struct Part {
    std::vector<RankSlice> slices;
    WeightVersion at;  // that is there; 0: none
    bool fetching = false;
    std::vector<std::pair<WeightVersion, Done>> waiting = {};
  };
  using PartPtr = std::shared_ptr<Part>;
  struct Rank {
    StreamId stream;
    Digest layout;
    Copy memory;
    uint64_t bytes = 0;
    std::map<RankSlice, PartPtr> parts = {};  // by each slice
  };

  // The place of what is wanted; `welcome` is the owner's. Errors as Bring.
  Result<PartPtr> Place(const Want& want, const SenderWelcome& welcome) REQUIRES(mutex_);
  Result<Rank*> RankOf(const Want& want, const SenderWelcome& welcome) REQUIRES(mutex_);
  // `base`: the version that is there; 0: none.
  void Fetch(const Want& want, WeightVersion base, const PartPtr& part, const Copy& memory);
  Status FetchNow(const Want& want, WeightVersion base, SnapshotMemory& memory);

  const Options options_;
  OwnerLinks& owners_;
  Cancellation stopped_;
  PartReader reader_;
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::map<TrainerRank, Rank> ranks_ GUARDED_BY(mutex_);
  std::vector<Done> passed_ GUARDED_BY(mutex_);  // of parts whose owner has registered again
  Counts counts_ GUARDED_BY(mutex_);
  Executor fetches_;
};

}  // namespace dws
