#include <stdlib.h>

#include <memory>

#include "tools/gpu_check/exporter/child_process.h"
#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/nccl_rank.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

using nccl::BroadcastChannel;

constexpr std::string_view kBroadcast = "a broadcast to two other ranks on one device";
constexpr std::string_view kDeath = "a rank killed in a broadcast costs one deadline";
constexpr std::string_view kAfter = "the others go on without it";

Result<ChildProcess> StartRank(const std::string& gpu, const NcclRank& rank) {
  return ChildProcess::Start(
      {.program = "",
       .arguments = {"--gpu=" + gpu, "--nccl-id=" + rank.id,
                     fmt::format("--nccl-rank={}", rank.rank),
                     fmt::format("--nccl-size={}", rank.size), "--nccl-role=" + rank.role},
       .environment = NcclEnvironment(rank.rank)});
}

// Ranks of these roles, from 1 on, and this process as rank 0: what it found, and the seconds that
// sending took.
struct Sent {
  Status sending;
  Status others;  // of the ranks that should survive
  double seconds = 0;
};
Result<Sent> Broadcast(const BroadcastChannel::Parts& parts, const std::string& gpu,
                       const std::vector<std::string>& roles) {
  DWS_ASSIGN_OR_RETURN(const nccl::NcclUniqueId id, nccl::NcclCommunicator::NewId(*parts.api));
  NcclRank own{.id = ToHex(id), .rank = 0, .size = static_cast<uint32_t>(roles.size() + 1)};
  std::vector<ChildProcess> others;
  for (const std::string& role : roles) {
    const auto rank = static_cast<uint32_t>(others.size() + 1);
    DWS_ASSIGN_OR_RETURN(
        ChildProcess child,
        StartRank(gpu, {.id = own.id, .rank = rank, .size = own.size, .role = role}));
    others.push_back(std::move(child));
  }
  Sent sent;
  {
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<BroadcastChannel> channel, JoinAs(parts, own));
    std::vector<std::byte> object(kBroadcastBytes);
    FillPattern(object, 7);
    const TimePoint start = parts.clock->Now();
    sent.sending = channel->Send(object, After(kBroadcastSeconds));
    sent.seconds = ToSeconds(parts.clock->Now() - start);
  }
  for (size_t i = 0; i < others.size(); ++i) {
    const Status ended = others[i].Wait();
    if (roles[i] != "die") sent.others.Update(ended);
  }
  return sent;
}

Status CheckBroadcast(const BroadcastChannel::Parts& parts, const std::string& gpu,
                      const std::vector<std::string>& roles, Results& results) {
  DWS_ASSIGN_OR_RETURN(const Sent sent, Broadcast(parts, gpu, roles));
  DWS_RETURN_IF_ERROR(sent.sending);
  DWS_RETURN_IF_ERROR(sent.others);
  results.Measured(
      fmt::format("broadcast over sockets on this host, {} ranks", roles.size() + 1),
      {.value = static_cast<double>(kBroadcastBytes) / sent.seconds * 1e-9, .unit = "GB/s"});
  return OkStatus();
}

Status CheckDeath(const BroadcastChannel::Parts& parts, const std::string& gpu) {
  DWS_ASSIGN_OR_RETURN(const Sent sent, Broadcast(parts, gpu, {"miss", "die"}));
  if (sent.sending.ok()) return InternalError("sending to a rank that was killed succeeded");
  // The deadline, and the time to end a communicator.
  if (sent.seconds > kBroadcastSeconds + 5) {
    return DeadlineExceededError("sending ended after {:.1f} s, expected at most {}", sent.seconds,
                                 kBroadcastSeconds);
  }
  return sent.others;
}

}  // namespace

Status RunNccl(const Options&, BenchDevice& device, Results& results) {
  for (const auto& [name, value] : NcclEnvironment(0)) {
    ::setenv(name.c_str(), value.c_str(), 1);  // before NCCL is loaded
  }
  const std::string& gpu = device.device->uuid();
  const Result<BroadcastChannel::Parts> parts = NcclPartsOf(gpu);
  if (absl::IsUnavailable(parts.status())) {
    for (const std::string_view name : {kBroadcast, kDeath, kAfter}) {
      results.Skipped(name, Message(parts.status()));
    }
    return OkStatus();
  }
  DWS_RETURN_IF_ERROR(parts.status());
  results.Checked(kBroadcast, CheckBroadcast(*parts, gpu, {"receive", "receive"}, results));
  results.Checked(kDeath, CheckDeath(*parts, gpu));
  results.Checked(kAfter, CheckBroadcast(*parts, gpu, {"receive"}, results));
  return OkStatus();
}

}  // namespace dws::gpu_check
