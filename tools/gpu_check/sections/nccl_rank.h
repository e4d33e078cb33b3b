// One rank of a broadcast between processes of this program on one device, where NCCL treats each
// as its own host.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/transport/nccl/broadcast_channel.h"

namespace dws::gpu_check {

inline constexpr uint64_t kBroadcastBytes = (uint64_t{16} << 20) + 77;
inline constexpr uint32_t kPieceBytes = uint32_t{1} << 20;
// How long ranks may take to join, and an object to be sent.
inline constexpr int kJoinSeconds = 30;
inline constexpr int kBroadcastSeconds = 8;

struct NcclRank {
  std::string id;  // of the communicator, in hexadecimal
  uint32_t rank = 0;
  uint32_t size = 0;
  // The part of a rank other than 0: "receive"; "die": it joins, and is killed when the object
  // begins; "miss": another one dies, so this one must give up in time.
  std::string role = "receive";
};

// The environment that NCCL needs in such a rank.
std::vector<std::pair<std::string, std::string>> NcclEnvironment(uint32_t rank);

// What a rank needs to take part. UNAVAILABLE: no libnccl; other errors are the device's.
Result<nccl::BroadcastChannel::Parts> NcclPartsOf(const std::string& gpu);
Result<std::unique_ptr<nccl::BroadcastChannel>> JoinAs(const nccl::BroadcastChannel::Parts& parts,
                                                       const NcclRank& rank);
nccl::BroadcastChannel::Until After(int seconds);

std::string ToHex(const nccl::NcclUniqueId& id);

// The process of a rank other than 0. Returns the exit status: 0 when the rank ended as its role
// requires.
int RunNcclRank(const std::string& gpu, const NcclRank& rank);

}  // namespace dws::gpu_check
