#include "tests/common/memory/cuda/stage_launch.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"

namespace dws::cuda {
namespace {

using samples::Bytes;

constexpr std::byte kGuard{0xA5};

uint32_t ElementCount(const StageCase& each) {
  return static_cast<uint32_t>(each.before.size() / ElementBytes(each.dtype));
}

uint64_t RoomBytes(const StageCase& each) {
  return StagedBytes(static_cast<uint8_t>(each.block.mode), each.block.nnz, ElementCount(each),
                     ElementBytes(each.dtype));
}

// The result of the codec for the host on a block.
struct Expected {
  bool sound = false;
  Bytes staged;
  Bytes after;
  Digest difference;
};

Expected Expect(const StageCase& each) {
  Expected expected;
  DecodedBlock decoded;
  const uint32_t element_bytes = ElementBytes(each.dtype);
  const Status status = DecodeBlock(each.dtype, ElementCount(each), ViewOf(each.block), decoded,
                                    {.classes = &each.table, .before = each.before});
  expected.sound = status.ok();
  expected.after = each.before;
  if (!expected.sound) return expected;
  ApplyBlock(each.dtype, decoded, expected.after);
  BlockChanges changes;
  expected.difference =
      dws::DiffBlock(each.dtype, each.before, expected.after, each.first_word, changes);
  const BlockMode mode = each.block.mode;
  if (mode == BlockMode::kDenseUlp || mode == BlockMode::kDenseRaw) {
    expected.staged = expected.after;
    return expected;
  }
  expected.staged.resize(StagedPositionsBytes(each.block.nnz) + each.block.nnz * element_bytes);
  std::memcpy(expected.staged.data(), decoded.positions.data(), decoded.positions.size() * 2);
  std::byte* value = expected.staged.data() + StagedPositionsBytes(each.block.nnz);
  for (const uint16_t position : decoded.positions) {
    std::memcpy(value, expected.after.data() + size_t{position} * element_bytes, element_bytes);
    value += element_bytes;
  }
  return expected;
}

// The bytes between the entries of positions and values have no meaning.
void ClearFill(const StageCase& each, Bytes& staged) {
  const BlockMode mode = each.block.mode;
  if (mode == BlockMode::kDenseUlp || mode == BlockMode::kDenseRaw) return;
  for (uint64_t at = uint64_t{each.block.nnz} * 2; at < StagedPositionsBytes(each.block.nnz); ++at)
    staged[at] = std::byte{0};
}

// Data and results of one launch.
class Launch {
 public:
  Launch(KernelRunner& runner, const std::vector<StageCase>& cases, samples::Random& random)
      : runner_(runner), cases_(cases) {
    uint64_t arena_bytes = 8 * random.Below(4);
    for (const StageCase& each : cases) {
      AddBlock(each, random);
      blocks_.back().staged = arena_bytes;
      arena_bytes += RoomBytes(each) + 8 * (1 + random.Below(4));
    }
    payloads_.resize(payloads_.size() + 16, std::byte{0xFF});
    arena_.assign(arena_bytes, kGuard);
    args_ = {.blocks = runner.PutItems(blocks_),
             .payloads = runner.Put(payloads_),
             .places = runner.PutItems(places_),
             .tables = runner.PutItems(tables_),
             .arena = runner.Put(arena_),
             .differences = runner.PutItems(std::vector<KernelDigest>(cases.size())),
             .failures = runner.PutItems(std::vector<uint32_t>(cases.size())),
             .block_count = static_cast<uint32_t>(cases.size())};
  }

  size_t Check() {
    runner_.Launch(Kernel::kStage, args_, cases_.size());
    runner_.Launch(Kernel::kStageSplit, args_, cases_.size());
    const Bytes staged = runner_.ReadBytes(args_.arena, arena_.size());
    const auto differences = runner_.ReadItems<KernelDigest>(args_.differences, cases_.size());
    const auto failures = runner_.ReadItems<uint32_t>(args_.failures, cases_.size());
    Bytes guards = staged;
    std::vector<CommitBlock> commits;
    std::vector<Expected> all;
    for (size_t i = 0; i < cases_.size(); ++i) {
      const StageCase& each = cases_[i];
      INFO(each.name << ", " << ToString(each.dtype) << " x " << ElementCount(each) << ", "
                     << ToString(each.block.mode) << " of " << each.block.nnz << ", runs of "
                     << each.layout.run_elements << " every " << each.layout.stride_elements
                     << " from " << each.layout.offset_elements);
      const Expected& expected = all.emplace_back(Expect(each));
      REQUIRE(failures[i] == (expected.sound ? 0 : 1));
      CHECK(differences[i].lane0 == expected.difference.lane0);
      REQUIRE(differences[i].lane1 == expected.difference.lane1);
      const auto room = guards.begin() + static_cast<std::ptrdiff_t>(blocks_[i].staged);
      if (expected.sound) {
        Bytes entries(room, room + static_cast<std::ptrdiff_t>(expected.staged.size()));
        ClearFill(each, entries);
        REQUIRE(entries == expected.staged);
        commits.push_back(CommitOf(i));
      }
      std::fill(room, room + static_cast<std::ptrdiff_t>(RoomBytes(each)), kGuard);
      REQUIRE(lives_[i].Read() == Slice(each, each.before));
    }
    REQUIRE(guards == arena_);
    CheckCommit(commits, all);
    return commits.size();
  }

 private:
  // The whole slice: the block and the elements before it.
  static Bytes Slice(const StageCase& each, const Bytes& block) {
    Bytes slice(each.elements_in_front * ElementBytes(each.dtype), std::byte{0x3C});
    slice.insert(slice.end(), block.begin(), block.end());
    return slice;
  }

  void AddBlock(const StageCase& each, samples::Random& random) {
    const uint32_t element_bytes = ElementBytes(each.dtype);
    lives_.emplace_back(runner_, Slice(each, each.before), element_bytes, each.layout);
    places_.push_back(lives_.back().place());
    KernelClassTable& table = tables_.emplace_back();
    table.hot_below = each.table.hot_below;
    table.hot_scale = each.table.hot_scale;
    table.threshold_count = each.table.threshold_count;
    std::copy(each.table.thresholds.begin(), each.table.thresholds.end(), table.thresholds);
    payloads_.resize(payloads_.size() + random.Below(10), std::byte{0xFF});
    blocks_.push_back({.payload = payloads_.size(),
                       .first_element = each.elements_in_front,
                       .first_word = each.first_word,
                       .payload_bytes = static_cast<uint32_t>(each.block.payload.size()),
                       .elements = ElementCount(each),
                       .nnz = each.block.nnz,
                       .place = static_cast<uint32_t>(places_.size() - 1),
                       .table = static_cast<uint32_t>(tables_.size() - 1),
                       .result = static_cast<uint32_t>(blocks_.size()),
                       .parameters = each.block.parameters,
                       .mode = static_cast<uint8_t>(each.block.mode),
                       .element = {static_cast<uint8_t>(element_bytes),
                                   MappingOf(each.dtype) == Mapping::kFloat}});
    payloads_.insert(payloads_.end(), each.block.payload.begin(), each.block.payload.end());
  }

  CommitBlock CommitOf(size_t i) const {
    const bool dense = blocks_[i].mode == 4 || blocks_[i].mode == 5;
    return {.staged = blocks_[i].staged,
            .first_element = blocks_[i].first_element,
            .entries = dense ? blocks_[i].elements : blocks_[i].nnz,
            .place = blocks_[i].place,
            .element_bytes = blocks_[i].element.bytes,
            .dense = dense};
  }

  void CheckCommit(const std::vector<CommitBlock>& commits, const std::vector<Expected>& all) {
    runner_.Launch(Kernel::kCommit,
                   CommitArgs{.blocks = runner_.PutItems(commits),
                              .places = args_.places,
                              .arena = args_.arena,
                              .block_count = static_cast<uint32_t>(commits.size())},
                   commits.size());
    for (size_t i = 0; i < cases_.size(); ++i) {
      INFO("committed " << cases_[i].name);
      REQUIRE(lives_[i].Read() == Slice(cases_[i], all[i].after));
      REQUIRE(lives_[i].SurroundingsIntact());
    }
  }

  KernelRunner& runner_;
  const std::vector<StageCase>& cases_;
  std::vector<LiveSlice> lives_;
  std::vector<Place> places_;
  std::vector<KernelClassTable> tables_;
  std::vector<StageBlock> blocks_;
  Bytes payloads_;
  Bytes arena_;
  StageArgs args_;
};

}  // namespace

size_t CheckStaging(KernelRunner& runner, const std::vector<StageCase>& cases,
                    samples::Random& random) {
  runner.Clear();
  return Launch(runner, cases, random).Check();
}

}  // namespace dws::cuda
