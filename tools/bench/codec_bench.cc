// Measures the codec on one core: capture (diff + encode + digest), stage and apply (frame check +
// decode + apply), and the bytes of whole objects against the entropy of the changes.
//
//   codec_bench [--mi-elements 64] [--repeat 3] [--trace DIR] [--csv FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "common/delta/encoder.h"
#include "common/delta/frame.h"
#include "common/delta/object.h"
#include "common/model/limits.h"
#include "tools/bench/synthetic.h"
#include "tools/bench/trace.h"

namespace dws::bench {
namespace {

// One tensor in two versions.
struct Workload {
  TensorSpec spec;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

struct Measurement {
  std::string name;
  uint64_t model_bytes = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;
  uint64_t object_bytes = 0;
  double entropy_bits = 0;  // of all changes together
  double encode_seconds = 0;
  double decode_seconds = 0;
};

struct Encoded {
  std::vector<std::vector<EncodedBlock>> blocks;  // of each tensor
  std::vector<Digest> difference;
};

ByteSpan BlockOf(DType dtype, ByteSpan tensor, uint32_t block) {
  const size_t block_bytes = size_t{limits::kBlockElements} * ElementBytes(dtype);
  return tensor.subspan(block * block_bytes,
                        std::min(block_bytes, tensor.size() - block * block_bytes));
}

Encoded EncodeAll(const std::vector<Workload>& tensors) {
  Encoded encoded;
  BlockChanges changes;
  for (const Workload& tensor : tensors) {
    const DType dtype = tensor.spec.dtype;
    const uint32_t block_count = tensor.spec.SliceBlocks(0);
    std::vector<EncodedBlock>& blocks = encoded.blocks.emplace_back(block_count);
    Digest& difference = encoded.difference.emplace_back();
    const uint64_t block_words = uint64_t{limits::kBlockElements} * ElementBytes(dtype) / 8;
    for (uint32_t b = 0; b < block_count; ++b) {
      const ByteSpan after = BlockOf(dtype, tensor.after, b);
      difference +=
          DiffBlock(dtype, BlockOf(dtype, tensor.before, b), after, b * block_words, changes);
      blocks[b] = EncodeBlock(dtype, changes, after, {});
    }
  }
  return encoded;
}

std::vector<std::byte> SealObject(const RankLayout& layout, const std::vector<Workload>& tensors,
                                  const Encoded& encoded) {
  std::vector<SliceBlocks> slices;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const Digest before = DigestBytes(tensors[i].before, 0);
    slices.push_back({.slice = RankSlice(i),
                      .before = before,
                      .after = before + encoded.difference[i],
                      .blocks = encoded.blocks[i]});
  }
  return BuildObject({.stream = {.incarnation = 1, .id_hi = 1, .id_lo = 1},
                      .trainer_rank = TrainerRank(0),
                      .version = WeightVersion(2),
                      .base_version = WeightVersion(1),
                      .layout_signature = layout.signature(),
                      .slices = {},
                      .state_token = {}},
                     slices);
}

// Brings `state` from the base to the new version; the benchmark's own objects are sound.
void ApplyObject(ByteSpan object, const RankLayout& layout,
                 std::vector<std::vector<std::byte>>& state) {
  const Result<ObjectHeader> header = ParseObjectHeader(object);
  const Result<DeltaManifest> manifest = ParseObjectManifest(object, layout);
  DWS_CHECK(header.ok() && manifest.ok());
  DecodedBlock decoded;
  for (const SliceDelta& slice : manifest->slices) {
    const RankLayout::SliceEntry& entry = layout.slice(slice.slice);
    const uint64_t block_bytes = uint64_t{limits::kBlockElements} * ElementBytes(entry.dtype);
    const MutableByteSpan tensor = state[slice.slice.value()];
    for (const FrameEntry& frame : slice.frames) {
      const Result<std::vector<EncodedBlockView>> blocks =
          ParseFrame(FrameBytes(object, *header, frame), frame);
      DWS_CHECK(blocks.ok());
      for (uint32_t b = 0; b < blocks->size(); ++b) {
        const uint32_t number = frame.first_block + b;
        const uint32_t elements = BlockElements(entry.elements, number);
        DWS_CHECK(DecodeBlock(entry.dtype, elements, (*blocks)[b], decoded).ok());
        ApplyBlock(
            entry.dtype, decoded,
            tensor.subspan(number * block_bytes, uint64_t{elements} * ElementBytes(entry.dtype)));
      }
    }
  }
}

Measurement Measure(std::string name, const std::vector<Workload>& tensors, int repeat) {
  const RealClock clock;
  Measurement result{.name = std::move(name), .encode_seconds = 1e30, .decode_seconds = 1e30};
  std::vector<Shard> shards;
  shards.reserve(tensors.size());
  for (const Workload& tensor : tensors) shards.push_back({.tensor = tensor.spec});
  const Result<RankLayout> layout = RankLayout::Create(shards);
  DWS_CHECK(layout.ok());
  result.model_bytes = layout->size_bytes();
  result.elements = layout->element_count();

  Encoded encoded;
  for (int i = 0; i < repeat; ++i) {
    const TimePoint start = clock.Now();
    encoded = EncodeAll(tensors);
    result.encode_seconds = std::min(result.encode_seconds, ToSeconds(clock.Now() - start));
  }
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    uint64_t changed = 0;
    for (const EncodedBlock& block : encoded.blocks[t]) changed += block.nnz;
    result.changed += changed;
    const double elements = static_cast<double>(tensors[t].spec.ElementCount());
    result.entropy_bits +=
        static_cast<double>(changed) * EntropyBits(static_cast<double>(changed) / elements);
  }
  const std::vector<std::byte> object = SealObject(*layout, tensors, encoded);
  result.object_bytes = object.size();

  for (int i = 0; i < repeat; ++i) {
    std::vector<std::vector<std::byte>> state;
    state.reserve(tensors.size());
    for (const Workload& tensor : tensors) state.push_back(tensor.before);
    const TimePoint start = clock.Now();
    ApplyObject(object, *layout, state);
    result.decode_seconds = std::min(result.decode_seconds, ToSeconds(clock.Now() - start));
    for (uint32_t t = 0; t < tensors.size(); ++t) DWS_CHECK(state[t] == tensors[t].after);
  }
  return result;
}

Result<std::vector<Measurement>> MeasureTrace(const std::string& directory, int repeat) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> files, TraceFiles(directory));
  DWS_ASSIGN_OR_RETURN(std::vector<TraceTensor> before, ReadTrace(files[0]));
  std::vector<Measurement> results;
  for (size_t f = 1; f < files.size(); ++f) {
    DWS_ASSIGN_OR_RETURN(std::vector<TraceTensor> after, ReadTrace(files[f]));
    std::vector<Workload> tensors;
    for (size_t t = 0; t < after.size(); ++t) {
      if (after.size() != before.size() || !(after[t].spec == before[t].spec)) {
        return DataLossError("{}: other tensors than the file before it", files[f]);
      }
      tensors.push_back(
          {.spec = after[t].spec, .before = before[t].bytes, .after = after[t].bytes});
    }
    results.push_back(Measure(fmt::format("trace {}", f), tensors, repeat));
    before = std::move(after);
  }
  return results;
}

void Print(const std::vector<Measurement>& results, const std::string& csv_path) {
  fmt::print("{:<18}{:>9}{:>10}{:>12}{:>13}{:>12}{:>9}{:>12}{:>12}\n", "workload", "MiB", "density",
             "changed", "object MiB", "bits/change", "entropy", "encode GB/s", "decode GB/s");
  std::string csv =
      "workload,model_bytes,density,changed,object_bytes,bits_per_change,entropy,encode_gbs,decode_"
      "gbs\n";
  for (const Measurement& m : results) {
    const double changed = static_cast<double>(std::max<uint64_t>(m.changed, 1));
    const double model_gb = static_cast<double>(m.model_bytes) * 1e-9;
    const double density = changed / static_cast<double>(m.elements);
    const double bits = static_cast<double>(m.object_bytes) * 8 / changed;
    const double entropy = m.entropy_bits / changed;
    const double encode = model_gb / m.encode_seconds;
    const double decode = model_gb / m.decode_seconds;
    fmt::print("{:<18}{:>9}{:>9.3f}%{:>12}{:>13.3f}{:>12.3f}{:>9.3f}{:>12.2f}{:>12.2f}\n", m.name,
               m.model_bytes >> 20, density * 100, m.changed,
               static_cast<double>(m.object_bytes) / (1 << 20), bits, entropy, encode, decode);
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", m.name, m.model_bytes, density, m.changed,
                       m.object_bytes, bits, entropy, encode, decode);
  }
  if (!csv_path.empty()) std::ofstream(csv_path) << csv;
}

int Main(int argc, char** argv) {
  uint64_t mi_elements = 64;
  int repeat = 3;
  std::string trace;
  std::string csv_path;
  CLI::App app("Measures the delta codec on one core.");
  app.add_option("--mi-elements", mi_elements, "BF16 elements of the synthetic tensor, in Mi")
      ->check(CLI::Range(1, 4096));
  app.add_option("--repeat", repeat, "runs of each, the fastest counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--trace", trace, "folder of safetensors files, consecutive versions by name");
  app.add_option("--csv", csv_path, "file to write the table to");
  CLI11_PARSE(app, argc, argv);

  std::vector<Measurement> results;
  for (const double density : {0.001, 0.002, 0.01, 0.02, 0.05}) {
    Versions versions = MakeBf16(mi_elements << 20, density);
    std::vector<Workload> tensors;
    tensors.push_back(
        {.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {mi_elements << 20}},
         .before = std::move(versions.before),
         .after = std::move(versions.after)});
    results.push_back(Measure(fmt::format("bernoulli {}%", density * 100), tensors, repeat));
  }
  if (!trace.empty()) {
    Result<std::vector<Measurement>> traced = MeasureTrace(trace, repeat);
    if (!traced.ok()) {
      fmt::print(stderr, "{}\n", ToString(traced.status()));
      return 1;
    }
    results.insert(results.end(), traced->begin(), traced->end());
  }
  Print(results, csv_path);
  return 0;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
