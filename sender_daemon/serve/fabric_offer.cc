#include "sender_daemon/serve/fabric_offer.h"

#include <chrono>
#include <string>

namespace dws {

// The loan keeps the snapshot, whose stream may end while it is read.
Status LendSnapshot(FabricHost& fabric, const RankState& state, v1::OpenFabricReply& reply) {
  const SnapshotMemory& memory = state.snapshot->memory();
  DWS_ASSIGN_OR_RETURN(
      const RemoteLoan loan,
      fabric.Lend({.id = memory.id(), .bytes = memory.all(), .keeper = state.snapshot}));
  const RemoteRegion& region = loan.region;
  reply.set_provider(std::string(ToString(region.provider)));
  reply.set_address_format(region.address_format);
  reply.set_address(region.address.data(), region.address.size());
  reply.set_base(region.base);
  reply.set_size(region.size);
  reply.set_key(region.key);
  reply.set_lease_seconds(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(loan.lease).count()));
  return OkStatus();
}

}  // namespace dws
