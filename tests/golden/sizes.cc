#include "tests/golden/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "common/base/check.h"
#include "common/delta/bits/ordinal.h"
#include "common/delta/objects/frame.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/hostile_cases.h"
#include "tests/common/delta/objects.h"
#include "tests/data/trace_excerpt.h"

namespace dws::golden {
namespace {

using samples::Bytes;
using samples::HostileCase;
using samples::Random;

// Columns after case and profile.
constexpr std::array<const char*, 10> kColumns = {
    "changed",    "object",      "manifest",  "index",     "raw",
    "split-rice", "class-split", "dense-ulp", "dense-raw", "dense-zstd"};

struct Profile {
  const char* name;
  EncodeOptions options;
  bool class_split = false;
};
constexpr Profile kDeltas[] = {
    {"relative", {.relative = true, .absolute = false, .zstd = false}},
    {"with-absolute", {.relative = true, .absolute = true, .zstd = false}},
    {"class-split", {.relative = true, .absolute = false, .zstd = false}, true}};
constexpr Profile kFull[] = {{"full", {.relative = false, .absolute = true, .zstd = false}},
                             {"full-zstd", {.relative = false, .absolute = true, .zstd = true}}};

// Two states to encode, and the class tables that a sender has from earlier changes.
struct SizesCase {
  HostileCase states;
  samples::ClassTables tables;
};

std::string Row(const SizesCase& sizes, const Profile& profile) {
  const HostileCase& states = sizes.states;
  const RankLayout& layout = states.layout;
  samples::Encoding encoding =
      samples::EncodeState(layout, states.before, states.after, profile.options);
  if (profile.class_split) {
    samples::SplitWhereSmaller(layout, states.before, states.after, sizes.tables, encoding);
  }
  const Bytes object = samples::SealObject(layout, encoding, 4);
  const ObjectHeader header = *ParseObjectHeader(object);
  const DeltaManifest manifest = *ParseObjectManifest(object, layout);
  uint64_t changed = 0;
  uint64_t index_bytes = 0;
  std::array<uint64_t, kBlockModes> payload_bytes{};
  for (const SliceDelta& slice : manifest.slices) {
    changed += slice.nnz;
    for (const FrameEntry& entry : slice.frames) {
      index_bytes += entry.size_bytes;
      const auto views = ParseFrame(FrameBytes(object, header, entry), entry);
      for (const EncodedBlockView& view : *views) {
        payload_bytes[static_cast<size_t>(view.mode)] += view.payload.size();
        index_bytes -= view.payload.size();
      }
    }
  }
  std::string row = fmt::format("{},{},{},{},{},{}", states.name, profile.name, changed,
                                object.size(), header.manifest_bytes, index_bytes);
  for (size_t mode = 1; mode < kBlockModes; ++mode) row += fmt::format(",{}", payload_bytes[mode]);
  return row;
}

// The steps of the recorded run, one by one and all in one. Class tables are those of the step
// before; the first step and all in one have the tables of the first step.
std::vector<SizesCase> TraceCases() {
  const samples::TraceExcerpt excerpt = samples::ReadTraceExcerpt();
  std::vector<SizesCase> cases;
  const samples::ClassTables first =
      samples::ChooseTables(excerpt.layout, excerpt.states[0], excerpt.states[1]);
  const auto add = [&](size_t from, size_t to, const samples::ClassTables& tables) {
    cases.push_back(
        {.states = {.name = fmt::format("rl-trace {}-{}", excerpt.steps[from], excerpt.steps[to]),
                    .layout = excerpt.layout,
                    .before = excerpt.states[from],
                    .after = excerpt.states[to]},
         .tables = tables});
  };
  samples::ClassTables latest = first;
  for (size_t i = 1; i < excerpt.states.size(); ++i) {
    add(i - 1, i, latest);
    latest = samples::ChooseTables(excerpt.layout, excerpt.states[i - 1], excerpt.states[i]);
  }
  add(0, excerpt.states.size() - 1, first);
  return cases;
}

HostileCase Nudged(std::string name, DType dtype, uint64_t elements, double density,
                   uint32_t step_bits) {
  const RankLayout layout = samples::VectorLayout(dtype, elements);
  Random random(elements);
  const samples::State before = samples::RandomState(layout, 1);
  return {.name = std::move(name),
          .layout = layout,
          .before = before,
          .after = {samples::Nudge(random, dtype, before[0], density, step_bits)}};
}

// FP32 master weights after a step of the optimiser: nearly all change, by a bell curve of some
// hundred units.
HostileCase Masters() {
  HostileCase masters = Nudged("F32 masters all moved", DType::kF32, 200'000, 0, 1);
  Random random(3);
  for (size_t at = 0; at < masters.after[0].size(); at += sizeof(uint32_t)) {
    const uint64_t bits = random.Next();
    const auto step = static_cast<uint32_t>((bits & 0xFF) + (bits >> 8 & 0xFF) +
                                            (bits >> 16 & 0xFF) + (bits >> 24 & 0xFF)) -
                      510;
    std::byte* element = masters.after[0].data() + at;
    const uint32_t ordinal = ToOrdinal(LoadLe<uint32_t>(element), Mapping::kFloat);
    StoreLe(element, FromOrdinal(ordinal + step, Mapping::kFloat));
  }
  return masters;
}

// Many tensors with a change or two each, for the size of manifest and frames.
HostileCase ManyTensors() {
  std::vector<Shard> shards(400);
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].tensor.name = fmt::format("layers.{:03}.norm", i);
    shards[i].tensor.dtype = DType::kBF16;
    shards[i].tensor.shape = {1024};
  }
  Result<RankLayout> layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  HostileCase many{.name = "400 tensors of 1024", .layout = *layout, .before = {}, .after = {}};
  many.before = samples::RandomState(many.layout, 4);
  Random random(4);
  for (const Bytes& before : many.before) {
    many.after.push_back(samples::Nudge(random, DType::kBF16, before, 0.002, 3));
  }
  return many;
}

// Cases with class tables made from the changes that are encoded.
std::vector<SizesCase> MadeCases() {
  Random random(5);
  std::vector<HostileCase> made = {Nudged("BF16 0.1 %", DType::kBF16, 1'000'000, 0.001, 3),
                                   Nudged("BF16 0.8 %", DType::kBF16, 1'000'000, 0.008, 3),
                                   Nudged("BF16 10 %", DType::kBF16, 300'000, 0.1, 3),
                                   Nudged("I8 1 %", DType::kI8, 300'000, 0.01, 3),
                                   Nudged("F64 1 %", DType::kF64, 100'000, 0.01, 40),
                                   Masters(),
                                   ManyTensors(),
                                   samples::FlippedScales(random),
                                   samples::OddTensors(random)};
  for (HostileCase& hostile : samples::HostileTensors(random, DType::kBF16, 70'003)) {
    std::replace(hostile.name.begin(), hostile.name.end(), ',', ';');
    made.push_back(std::move(hostile));
  }
  std::vector<SizesCase> cases;
  for (HostileCase& states : made) {
    samples::ClassTables tables = samples::ChooseTables(states.layout, states.before, states.after);
    cases.push_back({.states = std::move(states), .tables = std::move(tables)});
  }
  return cases;
}

std::vector<std::string> Cells(const std::string& row) {
  std::vector<std::string> cells(1);
  for (const char c : row) {
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

// Rows by case and profile.
std::map<std::string, std::vector<std::string>> ByName(const std::vector<std::string>& rows) {
  std::map<std::string, std::vector<std::string>> named;
  for (const std::string& row : rows) {
    std::vector<std::string> cells = Cells(row);
    cells.resize(kColumns.size() + 2);
    const std::string name = cells[0] + ", " + cells[1];
    named[name] = {cells.begin() + 2, cells.end()};
  }
  return named;
}

// "object 1200 -> 1190 (-0.83 %)".
std::string Difference(const char* column, const std::string& expected, const std::string& found) {
  const double was = std::strtod(expected.c_str(), nullptr);
  const double is = std::strtod(found.c_str(), nullptr);
  std::string text = fmt::format("{} {} -> {}", column, expected, found);
  if (was != 0) text += fmt::format(" ({:+.2f} %)", (is / was - 1) * 100);
  return text;
}

}  // namespace

std::string SizesHeader() {
  std::string header = "case,profile";
  for (const char* column : kColumns) header += fmt::format(",{}", column);
  return header;
}

std::vector<std::string> SizesRows() {
  std::vector<std::string> rows;
  for (const auto& cases : {TraceCases(), MadeCases()}) {
    for (const SizesCase& sizes : cases) {
      for (const Profile& profile : kDeltas) rows.push_back(Row(sizes, profile));
    }
    for (const Profile& profile : kFull) rows.push_back(Row(cases[0], profile));
  }
  return rows;
}

std::vector<std::string> CompareSizes(const std::vector<std::string>& expected,
                                      const std::vector<std::string>& found) {
  const auto old_rows = ByName(expected);
  const auto new_rows = ByName(found);
  std::vector<std::string> differences;
  for (const auto& [name, cells] : old_rows) {
    const auto other = new_rows.find(name);
    if (other == new_rows.end()) {
      differences.push_back(name + ": gone");
      continue;
    }
    std::string text;
    for (size_t c = 0; c < kColumns.size(); ++c) {
      if (cells[c] == other->second[c]) continue;
      text += (text.empty() ? ": " : "; ") + Difference(kColumns[c], cells[c], other->second[c]);
    }
    if (!text.empty()) differences.push_back(name + text);
  }
  for (const auto& [name, cells] : new_rows) {
    if (!old_rows.contains(name)) differences.push_back(name + ": new");
  }
  return differences;
}

}  // namespace dws::golden
