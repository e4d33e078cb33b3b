// What comes is proved by stamps and digests, so it does not matter who answers at the address: the
// sender named it over its authenticated connection.
#include "common/sources/fabric/lent_memory.h"

#include "common/sources/fabric/remote_snapshot.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/same_host/snapshot_memory.h"

namespace dws {
namespace {

constexpr size_t kPiecesMax = 16;
// How long nothing may arrive, not even a connection; then the rest comes another way.
constexpr std::chrono::seconds kTimeout{5};

}  // namespace

Result<LentMemory::Connect> LentMemory::Connector() {
  MutexLock lock(mutex_);
  if (!connect_) {
    auto api = FabricApi::Load();
    if (!api.ok()) return FailedPreconditionError("{}", Message(api.status()));
    connect_ = [api = *std::move(api)](
                   const RemoteRegion& region,
                   const FabricReader::Options& options) -> Result<std::unique_ptr<RemoteMemory>> {
      return FabricReader::Connect(api, region, options);
    };
  }
  return connect_;
}

Status LentMemory::Read(const Ask& ask, WeightVersion version, FullAssembly& assembly,
                        std::string& provider) {
  if (!choice_.on) return FailedPreconditionError("this receiver's --fabric is off");
  DWS_ASSIGN_OR_RETURN(const Connect connect, Connector());
  DWS_ASSIGN_OR_RETURN(const RemoteLoan loan, ask());
  provider = std::string(ToString(loan.region.provider));
  if (!choice_.Allows(loan.region.provider)) {
    return FailedPreconditionError("the sender's provider is {}, this receiver's --fabric is {}",
                                   provider, choice_.only ? ToString(*choice_.only) : "auto");
  }
  const SnapshotPlaces places(assembly.layout());
  if (loan.region.size != places.size_bytes()) {
    return DataLossError("the sender lends {} bytes, its layout needs {}", loan.region.size,
                         places.size_bytes());
  }
  TimePoint renew_at = clock_.Now() + loan.lease / 2;
  const auto going_on = [&]() -> Status {
    if (clock_.Now() < renew_at) return OkStatus();
    DWS_ASSIGN_OR_RETURN(const RemoteLoan again, ask());
    if (again.region != loan.region) {
      return UnavailableError("the sender lends another snapshot now");
    }
    renew_at = clock_.Now() + again.lease / 2;
    return OkStatus();
  };
  RemoteBuffers buffers(assembly, kPiecesMax);
  // Ends before the buffers: nothing arrives in them, or in the assembly, after this.
  DWS_ASSIGN_OR_RETURN(
      const std::unique_ptr<RemoteMemory> remote,
      connect(loan.region,
              {.local = buffers.Local(), .timeout = kTimeout, .pieces_max = kPiecesMax}));
  return ReadRemoteSnapshot(*remote, places, version, going_on, buffers, assembly);
}

}  // namespace dws
