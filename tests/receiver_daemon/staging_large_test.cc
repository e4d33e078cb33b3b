// Staging into more memory than 32 bits can count, most of it never touched: the engine's regions
// are sparse, so this takes neither time nor memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "common/delta/blocks/diff.h"
#include "common/delta/objects/object_writer.h"
#include "tests/common/delta/encode_block.h"
#include "tests/receiver_daemon/staging_case.h"

namespace dws {
namespace {

constexpr uint64_t kFourGiB = uint64_t{1} << 32;
constexpr Digest kBase = {.lane0 = 21,
                          .lane1 = 22};  // stands for the digest of all zeros; never computed

// One BF16 tensor in engine memory, with these `strides`.
struct LargeEngine {
  LargeEngine(std::vector<uint64_t> shape, std::vector<uint64_t> strides, uint64_t region_bytes)
      : layout(MakeRankLayout(
            {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = shape, .cuts = {}}}})) {
    auto layouts = LayoutSet::Create({layout});
    DWS_CHECK(layouts.ok());
    const std::vector<EngineView> views = {{.engine_name = "engine.w",
                                            .tensor = "w",
                                            .dtype = DType::kBF16,
                                            .shape = shape,
                                            .strides = strides}};
    auto mapping = MapEngine(**layouts, views, std::vector<uint64_t>{region_bytes}, {});
    auto created = CreateHostRegion("large-engine", region_bytes);
    DWS_CHECK(mapping.ok() && created.ok());
    row_elements = shape.back();
    row_stride = strides.front();
    begin = created->region.mutable_bytes().data();
    auto memory = std::make_shared<AttachedMemory>();
    memory->mapping = *std::move(mapping);
    memory->handed->regions.push_back(std::move(created->region));
    auto made = EngineWeights::Create(*std::move(layouts), {std::move(memory)});
    DWS_CHECK(made.ok());
    weights = *std::move(made);
  }
  const RankLayout::SliceEntry& slice() const { return layout->slice(RankSlice(0)); }
  std::byte* Address(uint64_t element) const {
    return begin + (element / row_elements * row_stride + element % row_elements) * 2;
  }

  std::shared_ptr<const RankLayout> layout;
  EngineWeightsPtr weights;
  uint64_t row_elements = 0;
  uint64_t row_stride = 0;
  std::byte* begin = nullptr;
};

// The object that adds one unit to `elements` (ascending) of a tensor of zeros, in mode A.
std::vector<std::byte> MakeObject(const LargeEngine& engine,
                                  const std::vector<uint64_t>& elements) {
  const RankLayout::SliceEntry& slice = engine.slice();
  std::vector<EncodedBlock> blocks(slice.blocks);
  Digest after = kBase;
  for (size_t i = 0; i < elements.size();) {
    const auto block = static_cast<uint32_t>(elements[i] / limits::kBlockElements);
    const size_t size_bytes = size_t{BlockElements(slice.elements, block)} * 2;
    const std::vector<std::byte> zeros(size_bytes);
    std::vector<std::byte> changed = zeros;
    for (; i < elements.size() && elements[i] / limits::kBlockElements == block; ++i) {
      changed[elements[i] % limits::kBlockElements * 2] = std::byte{1};
    }
    BlockChanges changes;
    after += DiffBlock(slice.dtype, zeros, changed, slice.BlockFirstWord(block), changes);
    blocks[block] = EncodeBlock(slice.dtype, changes, changed, {});
  }
  DeltaManifest identity{.version = WeightVersion(2),
                         .base_version = WeightVersion(1),
                         .layout_signature = engine.layout->signature()};
  ObjectWriter writer;
  REQUIRE(writer.AddSlice({.slice = RankSlice(0), .before = kBase, .after = after}, blocks).ok());
  return writer.Finish(std::move(identity));
}

StagedDelta Stage(const LargeEngine& engine, const std::vector<std::byte>& object) {
  const Spool spool = SpoolOf(object);
  const Result<FetchedObject> fetched = ParseObject(spool, *engine.layout);
  REQUIRE(fetched.ok());
  ThreadPool pool(1);
  const std::vector<SliceState> live = {{.kind = SliceState::Kind::kHeld, .digest = kBase}};
  Result<StagedDelta> staged = StageDelta(*engine.weights, TrainerRank(0), fetched->manifest,
                                          fetched->frames, spool, live, kPlenty, pool);
  REQUIRE(staged.ok());
  return *std::move(staged);
}

void CheckCommit(const LargeEngine& engine, const std::vector<uint64_t>& elements) {
  const StagedDelta staged = Stage(engine, MakeObject(engine, elements));
  for (const RejectedSlice& rejected : staged.rejected) INFO(ToString(rejected.reason));
  REQUIRE(staged.rejected.empty());
  REQUIRE_FALSE(staged.in_place);
  for (const uint64_t element : elements) {
    REQUIRE(LoadLe<uint16_t>(engine.Address(element)) == 0);
  }
  Write(*engine.weights, staged);
  for (const uint64_t element : elements) {
    INFO("element " << element);
    REQUIRE(LoadLe<uint16_t>(engine.Address(element)) == 1);
    // Nothing was written where an address cut to 32 bits would point.
    const uint64_t low = element % (kFourGiB / 2);
    const bool changed = std::find(elements.begin(), elements.end(), low) != elements.end();
    REQUIRE(LoadLe<uint16_t>(engine.Address(low)) == (changed ? 1 : 0));
  }
}

}  // namespace

TEST_CASE("a tensor above 4 GiB is staged and committed on both sides of 4 GiB", "[staging]") {
  const uint64_t elements = kFourGiB / 2 + 200'003;
  const LargeEngine engine({elements}, {1}, elements * 2 + 64);
  CheckCommit(engine, {5, kFourGiB / 4 - 1, kFourGiB / 4, kFourGiB / 2 - 1, kFourGiB / 2,
                       kFourGiB / 2 + 1, elements - 3, elements - 1});
}

TEST_CASE("a block whose rows lie more than 4 GiB apart is staged and committed", "[staging]") {
  // 32,768 rows of two elements are a block; 160 kB apart they span 5 GiB.
  constexpr uint64_t kRows = 40'000;
  constexpr uint64_t kStride = 80'000;
  const LargeEngine engine({kRows, 2}, {kStride, 1}, kRows * kStride * 2);
  CheckCommit(engine, {0, 1, 3, 26'842 * 2 + 1, 26'844 * 2, 65'534, 65'535, 65'536, kRows * 2 - 1});
}

}  // namespace dws
