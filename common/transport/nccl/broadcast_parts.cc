#include "common/transport/nccl/broadcast_parts.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/transport/nccl/cuda_lane.h"

namespace dws {
namespace {

Result<nccl::BroadcastChannel::Parts> Open(const std::string& gpu, const Clock& clock) {
  DWS_ASSIGN_OR_RETURN(nccl::NcclApiPtr api, nccl::NcclApi::Load());
  DWS_ASSIGN_OR_RETURN(nccl::CudaLanes lanes, nccl::OpenCudaLanes(gpu));
  LogInfo("broadcasts_possible",
          {{"nccl", nccl::NcclVersionText(api->version())}, {"gpu", lanes.uuid}});
  return nccl::BroadcastChannel::Parts{
      .api = std::move(api), .lanes = std::move(lanes.source), .clock = &clock};
}

}  // namespace

std::optional<nccl::BroadcastChannel::Parts> OpenBroadcasts(const BroadcastOptions& options,
                                                            const Clock& clock) {
  if (!options.wanted) return std::nullopt;
  // Broadcasts are an optimisation: without them versions are fetched, so no error stops the
  // daemon.
  auto parts = Open(options.gpu, clock);
  if (parts.ok()) return *std::move(parts);
  LogWarning("broadcasts_off",
             {{"reason", Message(parts.status())}, {"instead", "versions are fetched over gRPC"}});
  return std::nullopt;
}

}  // namespace dws
