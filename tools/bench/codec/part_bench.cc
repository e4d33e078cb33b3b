// P25: an engine of two ranks holds halves, by rows and by columns in turn. What a receiver of one
// half takes of the trainer's object is compared with an object of that half alone.
#include <utility>

#include "common/base/check.h"
#include "common/delta/objects/manifest.h"
#include "common/delta/objects/object_part.h"
#include "common/memory/segment_map.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/codec/wire_bench.h"
#include "tools/bench/measure/trace.h"

namespace dws::bench {
namespace {

constexpr Bar kPartBar = AtMost(1.05);
constexpr uint64_t kHalves = 2;

// Cut in the middle, every second tensor on its second dimension; those that cannot be are whole.
std::vector<TensorPair> CutInHalves(std::vector<TensorPair> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorSpec& spec = tensors[i].spec;
    const uint32_t dim = i % 2 == 1 && spec.shape.size() > 1 ? 1 : 0;
    if (spec.shape.size() <= dim || spec.shape[dim] % kHalves != 0) continue;
    spec.cuts = {{.dim = dim, .at = {spec.shape[dim] / kHalves}}};
  }
  return tensors;
}

// A slice of row-major `bytes`, in slice order.
std::vector<std::byte> SliceOf(const TensorSpec& spec, uint32_t slice, ByteSpan bytes) {
  const Result<BoxRuns> box =
      RunsWithin(RangesOf(spec, AllCells(spec)), spec.Slice(slice), RowMajorStrides(spec.shape));
  DWS_CHECK(box.ok());
  const uint64_t element_bytes = ElementBytes(spec.dtype);
  std::vector<std::byte> found(spec.SliceBytes(slice));
  const auto map = ConstSegmentMap::Create(bytes, box->first_element * element_bytes, box->runs,
                                           static_cast<uint32_t>(element_bytes));
  DWS_CHECK(map.ok());
  map->Gather(0, found);
  return found;
}

// Returns the tensors of an engine rank: one half of each tensor that is cut, and all others.
std::vector<TensorPair> HalfOf(const std::vector<TensorPair>& tensors, uint32_t half) {
  std::vector<TensorPair> found;
  for (const TensorPair& tensor : tensors) {
    const uint32_t slice = tensor.spec.cuts.empty() ? 0 : half;
    TensorPair part{.spec = {.name = tensor.spec.name,
                             .dtype = tensor.spec.dtype,
                             .shape = ShapeOf(tensor.spec.Slice(slice))},
                    .before = SliceOf(tensor.spec, slice, tensor.before),
                    .after = SliceOf(tensor.spec, slice, tensor.after)};
    found.push_back(std::move(part));
  }
  return found;
}

struct Published {
  RankLayout layout;
  RetainedVersionPtr version;
};

Result<Published> Publish(const std::vector<TensorPair>& tensors, DeltaProfile profile) {
  ThreadPool pool(1);
  std::vector<TensorSpec> specs;
  for (const TensorPair& tensor : tensors) specs.push_back(tensor.spec);
  DWS_ASSIGN_OR_RETURN(const Placement placement, PlaceTensors(specs));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(placement));
  Published published{.layout = placement.layout, .version = nullptr};
  for (const auto version : {&TensorPair::before, &TensorPair::after}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<std::byte>& bytes = tensors[i].*version;
      std::copy(bytes.begin(), bytes.end(), placement.Tensor(sender->weights(), i).begin());
    }
    sender->Capture(pool, profile);
    published.version = sender->Seal();
  }
  return published;
}

// Bytes of the part with the slices of `half`, of the object that a link of the profile gets.
Result<uint64_t> PartBytes(const Published& published, uint32_t half) {
  std::vector<RankSlice> held;
  for (uint32_t s = 0; s < published.layout.slice_count(); ++s) {
    const bool is_cut = published.layout.tensor(RankSlice(s)).SliceCount() > 1;
    if (!is_cut || published.layout.slice(RankSlice(s)).slice == half) held.emplace_back(s);
  }
  const ByteSpan object = SmallestObject(*published.version);
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(object));
  DWS_ASSIGN_OR_RETURN(const DeltaManifest manifest, ParseObjectManifest(object, published.layout));
  return SizeOf(PartRanges(header, manifest, held));
}

}  // namespace

Status BenchParts(const Options& options, Report& report) {
  DWS_ASSIGN_OR_RETURN(std::vector<TensorPair> tensors, ReadLastSteps(options.trace));
  tensors = CutInHalves(std::move(tensors));
  for (const auto& [profile, name] :
       {std::pair(DeltaProfile::kFast, "fast"), std::pair(DeltaProfile::kWan, "wan")}) {
    DWS_ASSIGN_OR_RETURN(const Published whole, Publish(tensors, profile));
    for (uint32_t half = 0; half < kHalves; ++half) {
      DWS_ASSIGN_OR_RETURN(const Published alone, Publish(HalfOf(tensors, half), profile));
      DWS_ASSIGN_OR_RETURN(const uint64_t taken, PartBytes(whole, half));
      const auto needed = static_cast<double>(SmallestObject(*alone.version).size());
      report.Add({.id = "P25",
                  .what = fmt::format("half {} of an engine of 2 ranks; profile {}", half, name),
                  .ours = static_cast<double>(taken),
                  .reference = needed,
                  .ratio = static_cast<double>(taken) / needed,
                  .unit = "bytes",
                  .bar = kPartBar});
    }
  }
  return OkStatus();
}

}  // namespace dws::bench
