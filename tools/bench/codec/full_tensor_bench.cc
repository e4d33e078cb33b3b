#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "tools/bench/codec/dense_bench.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/measure/machine_limits.h"
#include "tools/bench/measure/synthetic.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr uint64_t kBytesMax = uint64_t{256} << 20;
constexpr Bar kBar = AtLeast(0.3);
constexpr Duration kReadTimeout = std::chrono::seconds(10);

// Calls take(frame) for every frame of the newest version: as the sender makes them, a few at a
// time.
template <typename Take>
Status ReadFull(const SenderSide& sender, const Take& take) {
  FullReader reader(sender.state()->snapshot, sender.state()->log,
                    *sender.state()->snapshot->version(), WholeSlices(sender.state()->layout()));
  while (true) {
    DWS_ASSIGN_OR_RETURN(const std::vector<FullFrame> frames, reader.Next(kReadTimeout));
    if (frames.empty()) return OkStatus();
    for (const FullFrame& frame : frames) DWS_RETURN_IF_ERROR(take(frame));
  }
}

void Add(const char* what, double model_bytes, double ours, double reference, Report& report) {
  report.Add({.id = "dense",
              .what = what,
              .ours = model_bytes * 1e-9 / ours,
              .reference = model_bytes * 1e-9 / reference,
              .ratio = reference / ours,
              .unit = "GB/s",
              .bar = kBar});
}

}  // namespace

Status BenchFullTensors(const Options& options, Report& report) {
  const uint64_t elements = std::min(options.size_bytes, kBytesMax) / 2;
  Versions versions = MakeBf16(elements, 0.01);
  std::vector<TensorPair> tensors;
  tensors.push_back({.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {elements}},
                     .before = std::move(versions.before),
                     .after = std::move(versions.after)});
  DWS_ASSIGN_OR_RETURN(const Workload workload, Workload::Tile(std::move(tensors), 0));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(workload.placement()));
  workload.FillBefore(sender->weights());
  ThreadPool pool(0);
  sender->Capture(pool);
  DWS_ASSIGN_OR_RETURN(const auto receiver, ReceiverSide::Create(workload.placement()));
  receiver->BeginFull();
  DWS_RETURN_IF_ERROR(
      ReadFull(*sender, [&](const FullFrame& frame) { return receiver->ReceiveFull(frame); }));
  DWS_ASSIGN_OR_RETURN(const CreatedRegion copy,
                       CreateHostRegion("bench-copy", workload.placement().size_bytes));

  Status status;
  uint64_t frame_bytes = 0;
  const std::vector<Contender> contenders = {
      {.run =
           [&] {
             status.Update(ReadFull(*sender, [&](const FullFrame& frame) {
               frame_bytes += frame.bytes.size();
               return OkStatus();
             }));
           }},
      {.run = [&] { status.Update(receiver->WriteFull(pool)); }},
      {.run = [&] { CopyStream(copy.region.mutable_bytes(), sender->source_bytes(), pool); }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  DWS_RETURN_IF_ERROR(status);
  if (std::memcmp(receiver->weights().data(), sender->weights().data(), sender->weights().size()) !=
      0) {
    return DataLossError("full tensors do not lead to the trainer's weights");
  }
  const auto model_bytes = static_cast<double>(workload.model_bytes());
  Add("raw: snapshot to frames against memcpy; 1 thread", model_bytes, seconds[0], seconds[2],
      report);
  Add("raw: frames to the engine against memcpy; 1 thread", model_bytes, seconds[1], seconds[2],
      report);
  return OkStatus();
}

}  // namespace dws::bench
