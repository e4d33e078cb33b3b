#include "sender_daemon/on_demand/gather/part_reader.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "common/sources/fabric/lent_memory.h"
#include "common/sources/sender/fabric_source.h"
#include "common/sources/sender/grpc_source.h"
#include "sender_daemon/on_demand/gather/limits.h"
#include "sender_daemon/on_demand/gather/slice_advance.h"

namespace dws {
namespace {

// The chain does not judge what its last source has brought again.
Status CheckDigests(const FullWant& want, const FetchedFull& full) {
  std::map<RankSlice, Digest> arrived;
  for (const SpooledFrame& frame : full.frames) arrived[frame.slice] += *frame.arrived;
  for (const auto& [slice, digest] : arrived) {
    if (digest == want.expected[slice.value()]) continue;
    return DataLossError("slice {} of tensor '{}' is not as published", slice.value(),
                         want.layout.tensor(slice).name);
  }
  return OkStatus();
}

}  // namespace

PartReader::PartReader(Options options, std::vector<std::unique_ptr<Source>> sources,
                       OwnerLinks& owners, Cancellation& stopped)
    : options_(std::move(options)), owners_(owners), sources_(std::move(sources)) {
  std::vector<Source*> best_first;
  for (const auto& source : sources_) best_first.push_back(source.get());
  chain_ = std::make_unique<SourceChain>(
      std::move(best_first),
      SourceChain::Options{
          .senders = owners_.names(), .only_full = options_.only, .cancellation = &stopped});
}

void PartReader::AddFarSources(OwnerLinks& owners, const FabricChoice& fabric, const Clock& clock,
                               std::vector<std::unique_ptr<Source>>& sources) {
  if (fabric.on) {
    sources.push_back(std::make_unique<FabricSource>(owners, fabric, LentMemory::Connect(), clock));
  }
  sources.push_back(std::make_unique<GrpcSource>(owners, ProfileChoice::kAuto, clock));
}

Result<std::shared_ptr<const std::vector<Digest>>> PartReader::Digests(const Piece& piece,
                                                                       const VersionAt& at,
                                                                       const SenderWelcome& owner) {
  {
    MutexLock lock(mutex_);
    const auto found = described_.find(piece.rank);
    if (found != described_.end() && found->second.at == at &&
        found->second.rank_epoch == owner.rank_epoch &&
        found->second.digests->size() == owner.layout->slice_count()) {
      return found->second.digests;
    }
  }
  DWS_ASSIGN_OR_RETURN(
      PublishedState state,
      owners_.sender(piece).fetcher(piece.target, piece.rank).Describe(at.stream, at.version));
  if (state.slices.size() != owner.layout->slice_count() ||
      StateToken(state.slices) != state.state_token) {
    return DataLossError("it describes {} slices, its layout has {}, or their state token is wrong",
                         state.slices.size(), owner.layout->slice_count());
  }
  Described described{
      .at = at,
      .rank_epoch = owner.rank_epoch,
      .digests = std::make_shared<const std::vector<Digest>>(std::move(state.slices))};
  MutexLock lock(mutex_);
  return (described_[piece.rank] = std::move(described)).digests;
}

SyncTarget PartReader::TargetOf(const Want& want, const SenderWelcome& owner) {
  SyncTarget target{.stream = want.at.stream, .version = want.at.version, .ranks = {}};
  target.ranks.resize(want.owner.value() + 1);
  target.ranks.back() = {.sender = SenderIndex(want.owner.value()),
                         .nonce = 1,  // it is published
                         .layout = owner.layout,
                         .state_token = std::nullopt,
                         .base = std::nullopt};
  return target;
}

Status PartReader::Read(const Want& want, const SenderWelcome& owner) {
  const SyncTarget target = TargetOf(want, owner);
  const Piece piece{.target = target, .rank = want.owner};
  DWS_ASSIGN_OR_RETURN(const auto digests, Digests(piece, want.at, owner));
  const FullWant full{.layout = *owner.layout,
                      .slices = want.slices,
                      .expected = *digests,
                      .placed = &want.placed,
                      .rank = want.owner};
  DWS_ASSIGN_OR_RETURN(const FetchedFull read,
                       chain_->Full(piece, full,
                                    {.folder = options_.spool_folder,
                                     .memory_bytes_max = limits::kTurnBackBytesMax,
                                     .size_bytes_max = limits::kObjectBytesMax,
                                     .wanted = want.wanted}));
  return CheckDigests(full, read);
}

Result<uint64_t> PartReader::Advance(const Want& want, WeightVersion base,
                                     const SenderWelcome& owner) {
  const SyncTarget target = TargetOf(want, owner);
  const Piece piece{.target = target, .rank = want.owner};
  DWS_ASSIGN_OR_RETURN(const auto digests, Digests(piece, want.at, owner));
  uint64_t bytes = 0;
  for (const RankSlice slice : want.slices) bytes += owner.layout->slice(slice).size_bytes();
  const SliceSelection selection = std::vector<RankSlice>(want.slices.begin(), want.slices.end());
  SliceAdvance slices(*owner.layout, want.slices, want.placed);
  DWS_ASSIGN_OR_RETURN(const FetchedDelta delta,
                       chain_->Delta(piece, {.base = base, .slices = selection},
                                     {.folder = options_.spool_folder,
                                      .memory_bytes_max = limits::kTurnBackBytesMax,
                                      .size_bytes_max = std::max<uint64_t>(bytes / 2, 1),
                                      .wanted = want.wanted},
                                     slices));
  DWS_RETURN_IF_ERROR(slices.Check(*digests));
  return delta.bytes;
}

}  // namespace dws
