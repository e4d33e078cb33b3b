#include "sender_daemon/on_demand/gather/host_cache.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/transport/same_host/block_stamps.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

std::vector<std::unique_ptr<Source>> FarSources(OwnerLinks& owners, const FabricChoice& fabric,
                                                const Clock& clock) {
  std::vector<std::unique_ptr<Source>> sources;
  PartReader::AddFarSources(owners, fabric, clock, sources);
  return sources;
}

uint64_t BytesOf(const RankLayout& layout, const std::vector<RankSlice>& slices) {
  uint64_t bytes = 0;
  for (const RankSlice slice : slices) bytes += layout.slice(slice).size_bytes();
  return bytes;
}

// INVALID_ARGUMENT: they are not slices of the layout, in order.
Status CheckSlices(const RankLayout& layout, const std::vector<RankSlice>& slices) {
  if (slices.empty()) return InvalidArgumentError("no slices are asked for");
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].value() >= layout.slice_count() || (i > 0 && slices[i] <= slices[i - 1])) {
      return InvalidArgumentError("slice {}: expected ascending slices below {}", slices[i].value(),
                                  layout.slice_count());
    }
  }
  return OkStatus();
}

}  // namespace

HostCache::HostCache(Options options, OwnerLinks& owners, const Clock& clock)
    : options_(std::move(options)),
      owners_(owners),
      reader_({.only = std::nullopt, .spool_folder = options_.spool_folder},
              FarSources(owners, options_.fabric, clock), owners, stopped_),
      fetches_(limits::kOwnersAtOnce, limits::kHostCopiesWaitingMax) {}

void HostCache::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopped_.Cancel();
  fetches_.Stop();
  std::vector<Done> waiting;  // what was never begun
  {
    MutexLock lock(mutex_);
    for (auto& [owner, rank] : ranks_) {
      for (auto& [slice, part] : rank.parts) {
        for (auto& [version, done] : part->waiting) waiting.push_back(std::move(done));
        part->waiting.clear();
      }
    }
  }
  for (const Done& done : waiting) done(UnavailableError("the sender is shutting down"));
}

HostCache::Counts HostCache::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

Result<HostCache::Rank*> HostCache::RankOf(const Want& want, const SenderWelcome& welcome) {
  if (welcome.layout->signature() != want.layout) {
    return AbortedError("rank {} has another layout", want.owner.value());
  }
  const auto found = ranks_.find(want.owner);
  if (found != ranks_.end() && found->second.stream == want.at.stream &&
      found->second.layout == want.layout) {
    return &found->second;
  }
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotMemory> memory,
                       SnapshotMemory::Create(*welcome.layout));
  if (found != ranks_.end()) {  // its parts keep what their fetches need
    counts_.held_bytes -= found->second.bytes;
    for (auto& [slice, part] : found->second.parts) {
      for (auto& [version, done] : part->waiting) passed_.push_back(std::move(done));
      part->waiting.clear();
    }
    ranks_.erase(found);
  }
  return &ranks_
              .insert_or_assign(want.owner, Rank{.stream = want.at.stream,
                                                 .layout = want.layout,
                                                 .memory = std::move(memory)})
              .first->second;
}

Result<HostCache::PartPtr> HostCache::Place(const Want& want, const SenderWelcome& welcome) {
  DWS_RETURN_IF_ERROR(CheckSlices(*welcome.layout, want.slices));
  DWS_ASSIGN_OR_RETURN(Rank* const rank, RankOf(want, welcome));
  const auto known = rank->parts.find(want.slices.front());
  if (known != rank->parts.end() && known->second->slices == want.slices) return known->second;
  for (const RankSlice slice : want.slices) {
    if (!rank->parts.contains(slice)) continue;
    return FailedPreconditionError("slice {} of rank {} was asked for together with other slices",
                                   slice.value(), want.owner.value());
  }
  const uint64_t bytes = BytesOf(*welcome.layout, want.slices);
  if (bytes > options_.bytes_max - counts_.held_bytes) {
    return ResourceExhaustedError("{} of {} bytes are in use, {} more are wanted",
                                  counts_.held_bytes, options_.bytes_max, bytes);
  }
  counts_.held_bytes += bytes;
  rank->bytes += bytes;
  const auto part = std::make_shared<Part>(Part{.slices = want.slices, .at = WeightVersion(0)});
  for (const RankSlice slice : want.slices) rank->parts[slice] = part;
  return part;
}

void HostCache::Bring(const Want& want, Done done) {
  std::vector<Done> passed;
  const auto bring = [&]() -> Result<Copy> {  // null: `done` is called later
    if (options_.bytes_max == 0) {
      return FailedPreconditionError("this sender keeps no weights of other hosts");
    }
    if (want.owner.value() >= owners_.size()) {
      return InvalidArgumentError("rank {}: expected one below {}", want.owner.value(),
                                  owners_.size());
    }
    DWS_ASSIGN_OR_RETURN(const SenderWelcome welcome, owners_.owner(want.owner).Has(want.at));
    MutexLock lock(mutex_);
    if (stopping_) return UnavailableError("the sender is shutting down");
    const Result<PartPtr> place = Place(want, welcome);
    passed.swap(passed_);
    DWS_ASSIGN_OR_RETURN(const PartPtr part, place);
    const Copy memory = ranks_.at(want.owner).memory;
    if (!part->fetching && part->at == want.at.version) return memory;
    if (part->at > want.at.version) {
      return AbortedError("the copy has version {}, {} is wanted", part->at.value(),
                          want.at.version.value());
    }
    if (!part->fetching) {
      part->fetching = true;
      if (!fetches_.Post(
              [this, want, base = part->at, part, memory] { Fetch(want, base, part, memory); })) {
        part->fetching = false;
        return UnavailableError("too many fetches wait");
      }
    }
    part->waiting.emplace_back(want.at.version, std::move(done));
    return Copy();
  };
  Result<Copy> copy = bring();
  for (const Done& each : passed) each(UnavailableError("the owner has registered again"));
  if (!copy.ok() || *copy != nullptr) done(std::move(copy));
}

void HostCache::Fetch(const Want& want, WeightVersion base, const PartPtr& part,
                      const Copy& memory) {
  Status fetched = FetchNow(want, base, *memory);
  if (!fetched.ok()) {
    // Ranks that wait for it may ask elsewhere; RESOURCE_EXHAUSTED would say that there is no room.
    if (absl::IsCancelled(fetched) || absl::IsResourceExhausted(fetched)) {
      fetched = UnavailableError("{}", Message(fetched));
    }
    LogInfo("host_copy_failed",
            {{"trainer_rank", want.owner.value()}, {"reason", Message(fetched)}});
  }
  std::vector<std::pair<WeightVersion, Done>> waiting;
  {
    MutexLock lock(mutex_);
    part->fetching = false;
    part->at = fetched.ok() ? want.at.version : WeightVersion(0);
    waiting.swap(part->waiting);
  }
  for (const auto& [version, done] : waiting) {
    if (!fetched.ok()) {
      done(fetched);
    } else if (version != want.at.version) {
      done(UnavailableError("another version was fetched meanwhile"));
    } else {
      done(memory);
    }
  }
}

Status HostCache::FetchNow(const Want& want, WeightVersion base, SnapshotMemory& memory) {
  DWS_ASSIGN_OR_RETURN(const SenderWelcome welcome, owners_.owner(want.owner).Has(want.at));
  const RankLayout& layout = *welcome.layout;
  if (layout.signature() != want.layout) return AbortedError("its layout was refined");
  PlacedMemory placed{.memory = memory.content(), .places = {}};
  const auto stamps_of = [&](RankSlice slice) {
    const RankLayout::SliceEntry& entry = layout.slice(slice);
    return memory.stamps().subspan(entry.first_block, entry.blocks);
  };
  for (const RankSlice slice : want.slices) {
    placed.places.push_back({.first_byte = memory.places().slice_offset(slice)});
    MarkChanging(stamps_of(slice));
  }
  const PartReader::Want part{.at = want.at,
                              .owner = want.owner,
                              .slices = want.slices,
                              .placed = placed,
                              .wanted = [this] { return !stopped_.cancelled(); }};
  Result<uint64_t> bytes = AbortedError("nothing of it is here");
  if (base != WeightVersion(0)) bytes = reader_.Advance(part, base, welcome);
  if (!bytes.ok()) {
    if (base != WeightVersion(0) && !absl::IsResourceExhausted(bytes.status())) {
      LogInfo("host_copy_not_advanced", {{"trainer_rank", want.owner.value()},
                                         {"base_version", base.value()},
                                         {"version", want.at.version.value()},
                                         {"reason", Message(bytes.status())}});
    }
    DWS_RETURN_IF_ERROR(reader_.Read(part, welcome));
    bytes = BytesOf(layout, want.slices);
  }
  for (const RankSlice slice : want.slices) MarkAt(stamps_of(slice), want.at.version);
  MutexLock lock(mutex_);
  counts_.fetched_bytes += *bytes;
  return OkStatus();
}

}  // namespace dws
