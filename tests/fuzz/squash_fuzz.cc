// Structured input: a chain of versions of a small rank. Its squash gives the same state as its
// versions one after the other, and has no changes that cancel out. Over the old weights it is the
// same, although all blocks of floats are class-split then.
#include "common/base/check.h"
#include "common/delta/squash.h"
#include "sender_daemon/publish/delta_log.h"
#include "tests/common/delta/old_state.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

constexpr size_t kVersionsMax = 4;
constexpr size_t kChangesMax = 24;  // of one slice in one version

RankLayout Layout(uint64_t large_elements) {
  Result<RankLayout> layout = RankLayout::Create(
      {{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {3, 100}, .cuts = {{0, {1}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kF8E4M3, .shape = {large_elements}}},
       {.tensor = {.name = "c", .dtype = DType::kI64, .shape = {9}}}});
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

constexpr ClassTable kTable{
    .thresholds = {60, 120, 200}, .threshold_count = 3, .hot_below = 90, .hot_scale = 95};

// The version that leads from `before` to `after`.
RetainedVersionPtr Retain(const RankLayout& layout, const samples::State& before,
                          const samples::State& after, uint64_t base, bool split = false) {
  samples::Encoding encoding = samples::EncodeState(layout, before, after, {});
  if (split) samples::SplitEveryBlock(layout, before, after, kTable, encoding);
  auto version = std::make_shared<RetainedVersion>();
  version->version = WeightVersion(base + 1);
  version->base = WeightVersion(base);
  version->object = samples::SealObject(layout, encoding, base);
  version->header = *ParseObjectHeader(version->object);
  version->manifest = *ParseObjectManifest(version->object, layout);
  version->after = encoding.after;
  return version;
}

void Run(FuzzInput input) {
  static const RankLayout one_block = Layout(300);
  static const RankLayout two_blocks = Layout(65'541);  // slow, so used rarely
  const RankLayout& layout = input.Take<uint8_t>() % 16 == 15 ? two_blocks : one_block;
  const size_t versions = input.Take<uint8_t>() % kVersionsMax + 1;
  std::vector<samples::State> states(1);
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    states[0].push_back(TakeBlock(input, slice.size_bytes()));
  }
  std::vector<RetainedVersionPtr> chain;
  std::vector<RetainedVersionPtr> split;
  for (size_t v = 0; v < versions; ++v) {
    samples::State next = states.back();
    // Some versions go back to an earlier one: steps cancel.
    if (const auto from = input.Take<uint8_t>(); from % 8 == 7)
      next = states[from / 8 % states.size()];
    for (size_t s = 0; s < next.size(); ++s) {
      TakeChanges(input, layout.slices()[s].dtype, input.Take<uint8_t>() % kChangesMax, next[s]);
    }
    chain.push_back(Retain(layout, states.back(), next, v + 1));
    split.push_back(Retain(layout, states.back(), next, v + 1, true));
    samples::State sequential = states.back();
    DWS_CHECK(samples::ApplyObject(chain.back()->object, layout, true, sequential).ok());
    DWS_CHECK(sequential == next);
    states.push_back(std::move(next));
  }

  const Result<std::vector<std::byte>> squashed = Squash(layout, chain);
  DWS_CHECK(squashed.ok());
  std::vector<DeltaLink> links;
  for (const RetainedVersionPtr& version : split) links.push_back(version->link());
  static ThreadPool pool(0);
  DWS_CHECK(*SquashOver(layout, links, samples::OldState(layout, states.front()), UINT64_MAX,
                        pool) == *squashed);
  samples::State state = states.front();
  DWS_CHECK(samples::ApplyObject(*squashed, layout, true, state).ok());
  DWS_CHECK(state == states.back());
  const DeltaManifest manifest = *ParseObjectManifest(*squashed, layout);
  DWS_CHECK(manifest.base_version == WeightVersion(1));
  DWS_CHECK(manifest.version == WeightVersion(versions + 1));
  // The direct delta between the ends is the same except for its versions.
  const RetainedVersionPtr direct = Retain(layout, states.front(), states.back(), versions);
  DWS_CHECK(manifest.slices == direct->manifest.slices);
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
