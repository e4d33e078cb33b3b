// Reads what one owner has of a version into memory: by the first way that works, and every slice
// proved by the digest that its owner has published.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/sources/source_chain.h"
#include "common/transport/fabric/provider.h"
#include "sender_daemon/on_demand/gather/owner_links.h"

namespace dws {

// Lifecycle: as long as its sources' parts. Threads: safe from any.
class PartReader {
 public:
  struct Options {
    std::optional<std::string>
        only;                  // the only source that may be used; none: the first that works
    std::string spool_folder;  // where deltas go that do not fit memory
  };
  // Slices of one owner, and where they belong.
  struct Want {
    VersionAt at;
    TrainerRank owner;
    std::span<const RankSlice> slices;  // of its layout, ascending
    const PlacedMemory& placed;
    std::function<bool()> wanted;  // false: the read ends
  };

  // `sources`: best first. `stopped` ends all reads. `owners` and `stopped` outlive it.
  PartReader(Options options, std::vector<std::unique_ptr<Source>> sources, OwnerLinks& owners,
             Cancellation& stopped);
  // The sources that read an owner on any host.
  static void AddFarSources(OwnerLinks& owners, const FabricChoice& fabric, const Clock& clock,
                            std::vector<std::unique_ptr<Source>>& sources);

  // `owner`: as it has registered; it has published the version. Errors: those of Source, and
  // DATA_LOSS: the bytes are not as the owner says.
  Status Read(const Want& want, const SenderWelcome& owner);
  // Like Read, for memory that has the slices, each in one run, as of version `base`: by a delta
  // that has at most half of their bytes. Returns the bytes that came. After an error the memory
  // has neither version. RESOURCE_EXHAUSTED: the delta is larger.
  Result<uint64_t> Advance(const Want& want, WeightVersion base, const SenderWelcome& owner);

  // Which way brought how many bytes since the start.
  std::vector<SourceChain::Total> totals() const { return chain_->totals(); }
  // Why an owner's last bytes did not come by an earlier way.
  SourceChain::Last last(TrainerRank owner) const {
    return chain_->last(SenderIndex(owner.value()), Content::kFull);
  }

 private:
  // The digests of an owner's newest version that was asked for.
  struct Described {
    VersionAt at;
    RankEpoch rank_epoch;
    std::shared_ptr<const std::vector<Digest>> digests;
  };
  static SyncTarget TargetOf(const Want& want, const SenderWelcome& owner);
  Result<std::shared_ptr<const std::vector<Digest>>> Digests(const Piece& piece,
                                                             const VersionAt& at,
                                                             const SenderWelcome& owner);

  const Options options_;
  OwnerLinks& owners_;
  const std::vector<std::unique_ptr<Source>> sources_;
  std::unique_ptr<SourceChain> chain_;
  Mutex mutex_;
  std::map<TrainerRank, Described> described_ GUARDED_BY(mutex_);
};

}  // namespace dws
