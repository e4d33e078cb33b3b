// A capture may change the copy while it is read. The digests on the device show it; asking the
// sender afterwards only tells what to say.
#include "common/sources/sender/device_source.h"

#include <utility>
#include <vector>

#include "common/base/log/log.h"

namespace dws {
namespace {

CopiesWant WantOf(const Piece& piece, const FullAssembly& assembly) {
  return {
      .stream = piece.target.stream, .layout = assembly.layout(), .version = piece.target.version};
}

// The lent slices of which something is missing and that can be copied.
std::vector<LentSlice> Useful(const LentCopies& copies, const FullAssembly& assembly) {
  std::vector<uint8_t> missing(assembly.layout().slice_count(), 0);
  for (const BlockRange& range : assembly.Missing()) missing[range.slice.value()] = 1;
  std::vector<LentSlice> useful;
  for (const LentSlice& lent : copies.slices()) {
    // Each slice once: two copies may have it.
    if (missing[lent.slice.value()] == 0 || !assembly.TakesLent(lent.slice)) continue;
    missing[lent.slice.value()] = 0;
    useful.push_back(lent);
  }
  return useful;
}

}  // namespace

bool DeviceSource::suits(const FullAssembly& assembly) const {
  for (const RankSlice slice : assembly.slices()) {
    if (assembly.TakesLent(slice)) return true;
  }
  return false;
}

Status DeviceSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  if (!suits(assembly)) {
    return FailedPreconditionError(
        "the engine has none of these tensors in GPU memory alone, or --staging-bytes has no room "
        "for them beside it");
  }
  SenderLink& link = links_.sender(piece);
  Fetcher fetcher = link.fetcher(piece.target, piece.rank);
  DWS_ASSIGN_OR_RETURN(
      const LentCopies copies,
      fetcher.OpenGpuCopies(WantOf(piece, assembly), link.snapshot().users(), clock_));
  std::string devices = copies.devices();
  DWS_ASSIGN_OR_RETURN(const std::vector<RankSlice> wrong,
                       assembly.TakeLent(Useful(copies, assembly)));
  if (!wrong.empty()) return WhyWrong(piece, assembly, devices, wrong);
  TellOfColocation(copies, assembly.layout());
  {
    MutexLock lock(mutex_);
    devices_[piece.of().sender] = std::move(devices);
  }
  if (assembly.missing_blocks() == 0) return OkStatus();
  return UnavailableError("{} blocks are of tensors that are not in GPU memory at both ends",
                          assembly.missing_blocks());
}

Status DeviceSource::WhyWrong(const Piece& piece, const FullAssembly& assembly,
                              const std::string& devices, const std::vector<RankSlice>& wrong) {
  Fetcher fetcher = links_.sender(piece).fetcher(piece.target, piece.rank);
  const Status still = fetcher.AskGpuCopies(WantOf(piece, assembly));
  const std::string& first = assembly.layout().tensor(wrong[0]).name;
  if (!still.ok()) {
    return AbortedError("{} slices changed while they were read, the first is of '{}': {}",
                        wrong.size(), first, Message(still));
  }
  return DataLossError(
      "{} slices of the sender's copy on {} are not as published, the first is of '{}': GPU memory "
      "is damaged there, or on its way",
      wrong.size(), devices, first);
}

Status DeviceSource::ReadFullCapture(const Piece& piece, FullAssembly& assembly) {
  const Status asked =
      links_.sender(piece).fetcher(piece.target, piece.rank).AskGpuCopies(WantOf(piece, assembly));
  return absl::IsAborted(asked) ? OkStatus() : asked;
}

void DeviceSource::TellOfColocation(const LentCopies& copies, const RankLayout& layout) {
  std::string gpus;
  uint64_t bytes = 0;
  const cuda::LentMemory* counted = nullptr;  // neighbours lie in one memory
  for (const LentSlice& lent : copies.slices()) {
    if (!lent.memory->mapped_on_own_device()) continue;
    bytes += layout.slice(lent.slice).size_bytes();
    if (std::exchange(counted, lent.memory) == lent.memory) continue;
    gpus += (gpus.empty() ? "" : ", ") + lent.memory->device_uuid();
  }
  if (gpus.empty()) return;
  {
    MutexLock lock(mutex_);
    if (std::exchange(told_, true)) return;
  }
  LogInfo("colocated",
          {{"gpus", gpus},
           {"bytes", bytes},
           {"reason",
            "trainer and engine share GPUs: besides the weights of both, the sender's copy of its "
            "snapshot takes as many bytes there, deltas take staging memory, and the host encodes "
            "and decodes them; where most weights change, publish(full=True) copies on the GPU"}});
}

std::string DeviceSource::detail(SenderIndex sender) const {
  MutexLock lock(mutex_);
  const auto found = devices_.find(sender);
  return found == devices_.end() ? std::string() : found->second;
}

}  // namespace dws
