#include "sender_daemon/on_demand/gather/host_cache_source.h"

#include <algorithm>
#include <future>
#include <optional>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/sources/same_host/passed_memory.h"
#include "common/sources/same_host/snapshot_reader.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

constexpr std::chrono::milliseconds kAskAgain{10};

// Mixes the bits of a number, the same in every process.
uint64_t Mix(uint64_t number) {
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
  number = (number ^ number >> 27) * 0x94d049bb133111eb;
  return number ^ number >> 31;
}

}  // namespace

std::vector<TrainerRank> HostCacheSource::Keepers(TrainerRank owner, RankSlice first) const {
  std::vector<std::pair<uint64_t, TrainerRank>> keepers;
  for (uint32_t r = 0; r < links_.size(); ++r) {
    const OwnerLink& link = links_.owner(TrainerRank(r));
    const std::optional<OwnerHost> host = link.host();
    if (!host.has_value() || host->id != link.options().host_id || host->cache_bytes == 0) continue;
    const uint64_t what = Mix(uint64_t{owner.value()} << 32 | first.value());
    keepers.emplace_back(Mix(what ^ Mix(r + 1)), TrainerRank(r));
  }
  std::ranges::sort(keepers, std::greater<>());
  std::vector<TrainerRank> ranks;
  for (const auto& [hash, rank] : keepers) ranks.push_back(rank);
  return ranks;
}

Status HostCacheSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  const OwnerLink& owner = links_.owner(piece.rank);
  const std::optional<OwnerHost> host = owner.host();
  if (host.has_value() && host->id == owner.options().host_id) {
    return FailedPreconditionError("it is on this host");
  }
  const HostCache::Want want{.at = {.stream = piece.target.stream, .version = piece.target.version},
                             .owner = piece.rank,
                             .layout = assembly.layout().signature(),
                             .slices = {assembly.slices().begin(), assembly.slices().end()}};
  for (const TrainerRank keeper : Keepers(piece.rank, want.slices.front())) {
    const std::tuple<TrainerRank, TrainerRank, RankSlice> place(keeper, want.owner,
                                                                want.slices.front());
    {
      MutexLock lock(mutex_);
      if (full_stream_ != want.at.stream) full_.clear();
      full_stream_ = want.at.stream;
      if (full_.contains(place)) continue;
    }
    const auto copy = Ask(keeper, want, assembly);
    if (copy.ok()) return ReadSnapshot(**copy, want.at.version, assembly, pool_, true);
    if (absl::IsCancelled(copy.status()) && assembly.wanted()) {  // the keeper is silent, or stops
      return UnavailableError("{}", Message(copy.status()));
    }
    if (!absl::IsResourceExhausted(copy.status())) return copy.status();
    MutexLock lock(mutex_);
    full_.insert(place);
  }
  return FailedPreconditionError("no sender of this host has room for it");
}

Result<std::shared_ptr<const SnapshotMemory>> HostCacheSource::Ask(TrainerRank keeper,
                                                                   const HostCache::Want& want,
                                                                   const FullAssembly& assembly) {
  OwnerLink& link = links_.owner(keeper);
  const bool own = keeper == link.options().self;
  const auto until = std::chrono::steady_clock::now() + limits::kHostCopyPatience;
  while (true) {
    auto copy = own ? AskOwn(want, assembly) : AskOther(keeper, want, assembly);
    // Mostly it has not yet heard of a version of which this sender has.
    const bool again = absl::IsUnavailable(copy.status()) && assembly.wanted() &&
                       std::chrono::steady_clock::now() < until;
    if (!again || !link.calls().Wait(kAskAgain)) return copy;
  }
}

Result<std::shared_ptr<const SnapshotMemory>> HostCacheSource::AskOwn(
    const HostCache::Want& want, const FullAssembly& assembly) {
  const auto answer = std::make_shared<std::promise<Result<HostCache::Copy>>>();
  std::future<Result<HostCache::Copy>> copy = answer->get_future();
  own_.Bring(want, [answer](Result<HostCache::Copy> now) { answer->set_value(std::move(now)); });
  while (copy.wait_for(limits::kTick) != std::future_status::ready) {
    if (!assembly.wanted()) return CancelledError("given up");
  }
  DWS_ASSIGN_OR_RETURN(HostCache::Copy here, copy.get());
  return here;
}

Result<std::shared_ptr<const SnapshotMemory>> HostCacheSource::AskOther(
    TrainerRank keeper, const HostCache::Want& want, const FullAssembly& assembly) {
  OwnerLink& link = links_.owner(keeper);
  Mapped mapped;
  {
    MutexLock lock(mutex_);
    const Mapped& known = mapped_[{keeper, want.owner}];
    if (known.layout == want.layout) mapped = known;
  }
  v1::OpenHostCopyRequest request;
  *request.mutable_stream() = ToProto(want.at.stream);
  request.set_trainer_rank(want.owner.value());
  *request.mutable_layout_signature() = ToProto(want.layout);
  request.set_version(want.at.version.value());
  for (const RankSlice slice : want.slices) request.add_slices(slice.value());
  request.set_host(link.options().host_id);
  request.set_mapped(mapped.id);
  v1::OpenHostCopyReply reply;
  for (;;) {
    // The fetch goes on when a call for it has ended, so it is asked for again.
    ActiveCalls::Call call(link.calls(), limits::kHostCopyCall);
    const Status asked = FromGrpc(
        v1::TrainService::NewStub(link.channel())->OpenHostCopy(call.context(), request, &reply));
    if (!assembly.wanted()) return CancelledError("given up");
    if (absl::IsDeadlineExceeded(asked)) continue;
    DWS_RETURN_IF_ERROR(asked);
    DWS_RETURN_IF_ERROR(link.CheckPeer(*call.context()));
    break;
  }
  if (mapped.memory != nullptr && reply.copy() == mapped.id) return mapped.memory;
  DWS_ASSIGN_OR_RETURN(
      UniqueFd fd, TakeDescriptor(reply.handle_socket(), reply.token(), link.options().tls.users));
  DWS_ASSIGN_OR_RETURN(std::shared_ptr<const SnapshotMemory> memory,
                       SnapshotMemory::Map(std::move(fd), assembly.layout()));
  if (memory->id() != reply.copy()) {
    return FailedPreconditionError("the handle socket {} passed another copy than rank {}'s",
                                   reply.handle_socket(), keeper.value());
  }
  MutexLock lock(mutex_);
  mapped_[{keeper, want.owner}] = {.layout = want.layout, .id = reply.copy(), .memory = memory};
  return memory;
}

}  // namespace dws
