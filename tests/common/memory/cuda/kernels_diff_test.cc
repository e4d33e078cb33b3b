// The diff and digest kernels against the codec for the host.
#include <catch2/catch.hpp>
#include <cstring>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/model/digest/digest.h"
#include "tests/common/memory/cuda/live_slice.h"

namespace dws::cuda {
namespace {

using samples::Bytes;
using samples::Random;

// One block of a slice, with its former and its present bytes.
struct DiffCase {
  DType dtype = DType::kBF16;
  Bytes before;
  Bytes after;
  uint64_t first_word = 0;
};

// A launch of dws_diff over blocks in random layouts.
struct DiffLaunch {
  DiffLaunch(KernelRunner& its_runner, Random& random, const std::vector<DiffCase>& cases)
      : runner(its_runner) {
    for (const DiffCase& each : cases) {
      const uint32_t element_bytes = ElementBytes(each.dtype);
      const uint32_t elements = static_cast<uint32_t>(each.after.size() / element_bytes);
      lives.emplace_back(runner, each.after, element_bytes, RandomLayout(random, elements));
      places.push_back(lives.back().place());
      blocks.push_back({.snapshot = runner.Put(each.before),
                        .first_element = 0,
                        .first_word = each.first_word,
                        .elements = elements,
                        .place = static_cast<uint32_t>(places.size() - 1),
                        .first_segment = static_cast<uint32_t>(segments.size()),
                        .element = {static_cast<uint8_t>(element_bytes), 0}});
      segments.resize(segments.size() + DiffSegments(elements, element_bytes),
                      static_cast<uint32_t>(blocks.size() - 1));
    }
  }

  struct Limits {
    uint64_t arena_bytes = 16 << 20;
    uint64_t log_bytes = 16 << 20;
    uint32_t dense_above = 65'536;
  };
  std::vector<DiffResult> Run(const Limits& limits, uint32_t update) {
    const uint64_t work_bytes = DiffWorkBytes(blocks.size(), segments.size()) + limits.log_bytes;
    args = {.blocks = runner.PutItems(blocks),
            .segments = runner.PutItems(segments),
            .places = runner.PutItems(places),
            .results = runner.Allocate(blocks.size() * sizeof(DiffResult)),
            .arena = runner.Allocate(limits.arena_bytes),
            .arena_bytes = limits.arena_bytes,
            .arena_used = runner.PutItems(std::vector<uint64_t>(1)),
            .work = runner.Allocate(work_bytes),
            .work_bytes = work_bytes,
            .block_count = static_cast<uint32_t>(blocks.size()),
            .segment_count = static_cast<uint32_t>(segments.size()),
            .dense_above = limits.dense_above,
            .update = update};
    runner.Write(args.work, Bytes(DiffZeroBytes(blocks.size())));
    runner.Launch(Kernel::kDiff, args, segments.size());
    runner.Launch(Kernel::kDiffList, args, segments.size());
    return runner.ReadItems<DiffResult>(args.results, blocks.size());
  }

  Bytes Snapshot(size_t i) const {
    return runner.ReadBytes(blocks[i].snapshot,
                            uint64_t{blocks[i].elements} * blocks[i].element.bytes);
  }

  KernelRunner& runner;
  std::vector<LiveSlice> lives;
  std::vector<Place> places;
  std::vector<cuda::DiffBlock> blocks;
  std::vector<uint32_t> segments;
  DiffArgs args;
};

// The bytes that the arena must have for a block, in the order of diff_args.h.
Bytes ListOf(const DiffCase& each, const BlockChanges& changes) {
  const uint32_t element_bytes = ElementBytes(each.dtype);
  const uint64_t values_bytes = CeilDiv(changes.size() * element_bytes, 8) * 8;
  Bytes list(ListedBytes(changes.size(), element_bytes));
  if (changes.size() == 0) return list;
  std::memcpy(list.data(), changes.positions.data(), changes.size() * 2);
  std::byte* at = list.data() + StagedPositionsBytes(changes.size());
  for (const Bytes* state : {&each.before, &each.after}) {
    for (size_t i = 0; i < changes.size(); ++i) {
      std::memcpy(at + i * element_bytes,
                  state->data() + size_t{changes.positions[i]} * element_bytes, element_bytes);
    }
    at += values_bytes;
  }
  return list;
}

// Returns whether the block was listed, and checks its list if so.
bool CheckListed(const DiffLaunch& launch, size_t i, const DiffCase& each, const DiffResult& result,
                 bool updated) {
  BlockChanges changes;
  const Digest difference =
      dws::DiffBlock(each.dtype, each.before, each.after, each.first_word, changes);
  INFO(ToString(each.dtype) << ", " << changes.size() << " changes");
  if (result.listed == 0) {
    REQUIRE(result.changes == 0);
    REQUIRE((result.difference.lane0 | result.difference.lane1) == 0);
    REQUIRE(launch.Snapshot(i) == each.before);
    return false;
  }
  REQUIRE(result.changes == changes.size());
  CHECK(result.difference.lane0 == difference.lane0);
  REQUIRE(result.difference.lane1 == difference.lane1);
  const Bytes list = ListOf(each, changes);
  REQUIRE(launch.runner.ReadBytes(launch.args.arena + result.at, list.size()) == list);
  REQUIRE(launch.Snapshot(i) == (updated ? each.after : each.before));
  REQUIRE(launch.lives[i].SurroundingsIntact());
  REQUIRE(launch.lives[i].Read() == each.after);
  return true;
}

std::vector<DiffCase> RandomCases(Random& random) {
  std::vector<DiffCase> cases;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (const uint32_t elements : {1U, 3U, 100U, 4097U, 65'536U}) {
      for (const double density : {0.0, 0.001, 0.02, 0.6}) {
        const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
        cases.push_back({dtype, before, samples::Nudge(random, dtype, before, density, 20),
                         random.Below(uint64_t{1} << 40)});
      }
    }
  }
  return cases;
}

// Elements begin to end - 1.
struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Random elements, all of which change in the ranges and nowhere else.
DiffCase CaseOf(Random& random, DType dtype, uint32_t elements, const std::vector<Range>& changed) {
  const uint32_t element_bytes = ElementBytes(dtype);
  const Bytes before = samples::RandomBytes(random, size_t{elements} * element_bytes);
  DiffCase made{dtype, before, before, random.Below(uint64_t{1} << 40)};
  for (const Range& range : changed) {
    for (size_t e = range.begin; e < range.end; ++e) made.after[e * element_bytes] ^= std::byte{1};
  }
  return made;
}

size_t ChangesOf(const DiffCase& each) {
  BlockChanges changes;
  dws::DiffBlock(each.dtype, each.before, each.after, 0, changes);
  return changes.size();
}

}  // namespace

TEST_CASE("diff: changes and digests and snapshots are those of the codec", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  for (const uint32_t update : {0U, 1U}) {
    runner->Clear();
    const std::vector<DiffCase> cases = RandomCases(random);
    DiffLaunch launch(*runner, random, cases);
    const std::vector<DiffResult> results = launch.Run({}, update);
    for (size_t i = 0; i < cases.size(); ++i) {
      REQUIRE(CheckListed(launch, i, cases[i], results[i], update != 0));
    }
  }
}

TEST_CASE("diff: a block with too many changes is not listed and keeps its snapshot", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  const std::vector<DiffCase> cases = RandomCases(random);
  for (const uint32_t dense_above : {0U, 1U, 700U}) {
    runner->Clear();
    DiffLaunch launch(*runner, random, cases);
    const std::vector<DiffResult> results = launch.Run({.dense_above = dense_above}, 1);
    for (size_t i = 0; i < cases.size(); ++i) {
      REQUIRE(CheckListed(launch, i, cases[i], results[i], true) ==
              (ChangesOf(cases[i]) <= dense_above));
    }
  }
}

TEST_CASE("diff: blocks that do not fit into the arena are not listed and keep their snapshot",
          "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  const std::vector<DiffCase> cases = RandomCases(random);
  for (const uint64_t arena_bytes : {uint64_t{0}, uint64_t{8}, uint64_t{5000}, uint64_t{1} << 18}) {
    runner->Clear();
    DiffLaunch launch(*runner, random, cases);
    const std::vector<DiffResult> results = launch.Run({.arena_bytes = arena_bytes}, 1);
    size_t listed = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      listed += CheckListed(launch, i, cases[i], results[i], true) ? 1 : 0;
    }
    REQUIRE(listed < cases.size());
    REQUIRE(launch.runner.ReadItems<uint64_t>(launch.args.arena_used, 1)[0] > arena_bytes);
  }
}

TEST_CASE("diff: blocks that do not fit into the log are not listed and keep their snapshot",
          "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  const std::vector<DiffCase> cases = RandomCases(random);
  for (const uint64_t log_bytes :
       {uint64_t{0}, uint64_t{8}, uint64_t{24}, uint64_t{5000}, uint64_t{1} << 18}) {
    runner->Clear();
    DiffLaunch launch(*runner, random, cases);
    const std::vector<DiffResult> results = launch.Run({.log_bytes = log_bytes}, 1);
    size_t listed = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const bool changed = cases[i].before != cases[i].after;
      const bool is_listed = CheckListed(launch, i, cases[i], results[i], true);
      REQUIRE((is_listed || changed));
      listed += is_listed ? 1 : 0;
    }
    REQUIRE(listed < cases.size());
  }
}

TEST_CASE("diff: changes at any place of a block's segments are listed", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  std::vector<DiffCase> cases;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    const uint32_t per_segment = kDiffSegmentWords * 8 / ElementBytes(dtype);
    const auto add = [&](uint32_t elements, const std::vector<Range>& changed) {
      cases.push_back(CaseOf(random, dtype, elements, changed));
    };
    add(65'536, {{0, per_segment}});                         // all of the first segment
    add(65'536, {{65'536 - per_segment, 65'536}});           // all of the last
    add(65'536, {{0, 1}, {65'535, 65'536}});                 // segments without changes between
    add(65'536, {{per_segment - 1, per_segment + 1}});       // on both sides of a border
    add(65'536, {{per_segment - 700, per_segment + 1300}});  // several pieces in two segments
    add(65'536, {{0, 65'536}});
    add(per_segment, {{0, per_segment}});
    add(per_segment + 1, {{per_segment, per_segment + 1}});  // a last segment of one element
    add(per_segment - 1, {{0, 1}, {per_segment - 2, per_segment - 1}});
  }
  for (const uint32_t dense_above : {65'536U, 2000U, 1999U}) {
    runner->Clear();
    DiffLaunch launch(*runner, random, cases);
    const std::vector<DiffResult> results =
        launch.Run({.log_bytes = 32 << 20, .dense_above = dense_above}, 1);
    for (size_t i = 0; i < cases.size(); ++i) {
      INFO("case " << i << ", at most " << dense_above);
      REQUIRE(CheckListed(launch, i, cases[i], results[i], true) ==
              (ChangesOf(cases[i]) <= dense_above));
    }
  }
}

TEST_CASE("digests of live blocks in any layout are summed per result", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  std::vector<LiveSlice> lives;
  std::vector<Place> places;
  std::vector<DigestBlock> blocks;
  std::vector<Digest> expected(4);
  for (int i = 0; i < 200; ++i) {
    const uint32_t element_bytes = 1U << random.Below(4);
    const uint64_t in_front = random.Chance(0.5) ? 0 : random.Below(5000);
    const uint32_t elements =
        static_cast<uint32_t>(1 + random.Below(random.Chance(0.1) ? 65'536 : 2000));
    const Bytes slice = samples::RandomBytes(random, (in_front + elements) * element_bytes);
    lives.emplace_back(*runner, slice, element_bytes, RandomLayout(random, in_front + elements));
    places.push_back(lives.back().place());
    blocks.push_back({.first_element = in_front,
                      .first_word = random.Below(uint64_t{1} << 40),
                      .elements = elements,
                      .place = static_cast<uint32_t>(places.size() - 1),
                      .result = static_cast<uint32_t>(random.Below(expected.size())),
                      .element_bytes = static_cast<uint8_t>(element_bytes)});
    expected[blocks.back().result] +=
        DigestBytes(ByteSpan(slice).subspan(in_front * element_bytes), blocks.back().first_word);
  }
  const DigestArgs args{.blocks = runner->PutItems(blocks),
                        .places = runner->PutItems(places),
                        .digests = runner->PutItems(std::vector<KernelDigest>(expected.size())),
                        .block_count = static_cast<uint32_t>(blocks.size())};
  runner->Launch(Kernel::kDigest, args, blocks.size());
  const auto digests = runner->ReadItems<KernelDigest>(args.digests, expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(digests[i].lane0 == expected[i].lane0);
    CHECK(digests[i].lane1 == expected[i].lane1);
  }
}

}  // namespace dws::cuda
