#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/codec/wire_bench.h"
#include "tools/bench/measure/synthetic.h"

namespace dws::bench {
namespace {

constexpr uint64_t kElements = uint64_t{64} << 20;
constexpr Bar kBar = AtMost(1.03);

Status BenchDensity(uint64_t elements, double density, ThreadPool& pool, Report& report) {
  Versions versions = MakeBf16(elements, density);
  std::vector<TensorPair> tensors;
  tensors.push_back({.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {elements}},
                     .before = std::move(versions.before),
                     .after = std::move(versions.after)});
  DWS_ASSIGN_OR_RETURN(const Workload workload, Workload::Tile(std::move(tensors), 0));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(workload.placement()));
  workload.FillBefore(sender->weights());
  // The first version has no delta; the second is the one that is measured.
  sender->Capture(pool);
  sender->Seal();
  const std::vector<std::byte> before(sender->weights().begin(), sender->weights().end());
  workload.Write(sender->weights(), workload.changes().after);
  sender->Capture(pool);
  const RetainedVersionPtr sealed = sender->Seal();
  DWS_RETURN_IF_ERROR(
      CheckObject(workload.placement(), sealed->object, before, sender->weights(), pool));

  const double bits =
      static_cast<double>(sealed->object.size()) * 8 / static_cast<double>(sealed->nnz);
  const double entropy = EntropyBits(workload.density());
  report.Add({.id = "P1a",
              .what = fmt::format("{} Mi elements; {} % changed", elements >> 20, density * 100),
              .ours = bits,
              .reference = entropy,
              .ratio = bits / entropy,
              .unit = "bits/change",
              .bar = kBar});
  return OkStatus();
}

}  // namespace

Status BenchSyntheticBytes(const Options& options, Report& report) {
  ThreadPool pool(1);
  const uint64_t elements = std::min(kElements, options.size_bytes / 2);
  for (const double density : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05}) {
    DWS_RETURN_IF_ERROR(BenchDensity(elements, density, pool, report));
  }
  return OkStatus();
}

}  // namespace dws::bench
