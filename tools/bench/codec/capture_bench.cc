// The trainer goes back and forth between two versions. Each round captures the next one, reads the
// trainer's and the snapshot's memory as two streams, then as one; nothing else touches it.
#include "tools/bench/codec/capture_bench.h"

#include "tools/bench/codec/sender_side.h"
#include "tools/bench/measure/machine_limits.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

struct ProfileBar {
  DeltaProfile profile;
  const char* id;
  const char* name;
  Bar bar;
};
constexpr ProfileBar kFast{DeltaProfile::kFast, "P3a", "fast", AtLeast(0.70)};
constexpr ProfileBar kWan{DeltaProfile::kWan, "P3b", "wan", AtLeast(0.50)};
constexpr Bar kCompareBar = AtLeast(0.95);

std::vector<StreamPair> Streams(const Placement& placement, SenderSide& sender) {
  std::vector<StreamPair> pieces;
  uint32_t slice = 0;
  for (size_t i = 0; i < placement.places.size(); ++i) {
    const Shard& shard = placement.layout.shards()[i];
    uint64_t offset = placement.places[i].offset_bytes;
    for (uint32_t s = 0; s < CellCount(shard.cells); ++s, ++slice) {
      const ByteSpan snapshot = sender.snapshot().SliceBytes(RankSlice(slice));
      AppendPieces(sender.source_bytes().subspan(offset, snapshot.size()), snapshot, pieces);
      offset += snapshot.size();
    }
  }
  return pieces;
}

void BenchThreads(const Options& options, const Workload& workload, SenderSide& sender,
                  const ProfileBar& which, size_t threads, Report& report) {
  ThreadPool pool(threads - 1);
  const std::vector<StreamPair> streams = Streams(workload.placement(), sender);
  bool is_after = false;
  const std::vector<Contender> contenders = {
      {.run = [&] { sender.Capture(pool, which.profile); },
       .prepare =
           [&] {
             is_after = !is_after;
             workload.Write(sender.weights(),
                            is_after ? workload.changes().after : workload.changes().before);
           }},
      {.run = [&] { CompareStreams(streams, pool); }},
      {.run = [&] { ReadStreams(streams, pool); }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  if (is_after) {  // restore the state
    workload.Write(sender.weights(), workload.changes().before);
    sender.Capture(pool, which.profile);
  }

  const double model_gb = static_cast<double>(workload.model_bytes()) * 1e-9;
  const std::string with = fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  report.Add({.id = which.id,
              .what = fmt::format("capture; profile {}; {:.2f} % changed; {}", which.name,
                                  workload.density() * 100, with),
              .ours = model_gb / seconds[0],
              .reference = model_gb / seconds[1],
              .ratio = seconds[1] / seconds[0],
              .unit = "GB/s",
              .bar = which.bar});
  report.Add({.id = which.id,
              .what = fmt::format("the reference: two streams against one; {}", with),
              .ours = 2 * model_gb / seconds[1],
              .reference = 2 * model_gb / seconds[2],
              .ratio = seconds[2] / seconds[1],
              .unit = "GB/s read",
              .bar = kCompareBar});
}

}  // namespace

Status BenchCapture(const Options& options, const Workload& workload, Report& report) {
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(workload.placement()));
  workload.FillBefore(sender->weights());
  ThreadPool pool(1);
  sender->Capture(pool);
  for (const ProfileBar& which : {kFast, kWan}) {
    for (const size_t threads : {1, 2}) {
      BenchThreads(options, workload, *sender, which, threads, report);
    }
  }
  return OkStatus();
}

}  // namespace dws::bench
