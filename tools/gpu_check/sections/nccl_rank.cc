#include "tools/gpu_check/sections/nccl_rank.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstdio>
#include <memory>

#include "common/transport/nccl/cuda_lane.h"
#include "tools/gpu_check/exporter/exporter.h"

namespace dws::gpu_check {
namespace {

using nccl::BroadcastChannel;

nccl::NcclUniqueId FromHex(const std::string& hex) {
  nccl::NcclUniqueId id = {};
  for (size_t i = 0; i < id.bytes.size() && 2 * i + 1 < hex.size(); ++i) {
    id.bytes[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

const Clock& TheClock() {
  static const RealClock clock;
  return clock;
}

Status TakePart(const std::string& gpu, const NcclRank& rank) {
  DWS_ASSIGN_OR_RETURN(const BroadcastChannel::Parts parts, NcclPartsOf(gpu));
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<BroadcastChannel> channel, JoinAs(parts, rank));
  if (rank.role == "die") ::raise(SIGKILL);
  std::vector<std::byte> object(kBroadcastBytes);
  const Status received = channel->Receive(object, object.size(), After(kBroadcastSeconds));
  if (rank.role == "miss") {
    return received.ok() ? InternalError("accepted an object whose other receiver was killed")
                         : OkStatus();
  }
  DWS_RETURN_IF_ERROR(received);
  std::vector<std::byte> expected(kBroadcastBytes);
  FillPattern(expected, 7);
  return object == expected ? OkStatus() : DataLossError("received other bytes than were sent");
}

}  // namespace

// With its own host id, and without the ways inside one host, each rank takes the network's path.
std::vector<std::pair<std::string, std::string>> NcclEnvironment(uint32_t rank) {
  return {{"NCCL_HOSTID", fmt::format("gpu-check-{}", rank)},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"},
          {"NCCL_IB_DISABLE", "1"},
          {"NCCL_SOCKET_IFNAME", "lo"}};
}

Result<BroadcastChannel::Parts> NcclPartsOf(const std::string& gpu) {
  BroadcastChannel::Parts parts{.clock = &TheClock()};
  DWS_ASSIGN_OR_RETURN(parts.api, nccl::NcclApi::Load());
  DWS_ASSIGN_OR_RETURN(nccl::CudaLanes lanes, nccl::OpenCudaLanes(gpu));
  parts.lanes = std::move(lanes.source);
  return parts;
}

Result<std::unique_ptr<BroadcastChannel>> JoinAs(const BroadcastChannel::Parts& parts,
                                                 const NcclRank& rank) {
  return BroadcastChannel::Join(parts,
                                {.id = FromHex(rank.id),
                                 .place = {.rank = rank.rank, .size = rank.size},
                                 .piece_bytes = kPieceBytes},
                                After(kJoinSeconds));
}

BroadcastChannel::Until After(int seconds) {
  return {.deadline = TheClock().Now() + std::chrono::seconds(seconds), .given_up = nullptr};
}

std::string ToHex(const nccl::NcclUniqueId& id) {
  std::string hex;
  for (const char byte : id.bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

int RunNcclRank(const std::string& gpu, const NcclRank& rank) {
  const Status status = TakePart(gpu, rank);
  if (status.ok()) return 0;
  fmt::print(stderr, "rank {} of {}: {}\n", rank.rank, rank.size, ToString(status));
  return 1;
}

}  // namespace dws::gpu_check
