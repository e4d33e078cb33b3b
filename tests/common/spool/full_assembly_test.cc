#include "common/spool/full_assembly.h"

#include <catch2/catch.hpp>
#include <random>

namespace dws {
namespace {

RankLayout SmallLayout() {
  auto layout =
      RankLayout::Create({Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {300'001}}),
                          Shard::Whole({.name = "b", .dtype = DType::kF32, .shape = {7}}),
                          Shard::Whole({.name = "c", .dtype = DType::kF32, .shape = {200'000}}),
                          Shard::Whole({.name = "d", .dtype = DType::kBF16, .shape = {0}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

// Random bytes of every slice, and their digests.
struct Tensors {
  RankLayout layout = SmallLayout();
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Digest> digests;
  TransferProgress progress;

  Tensors() {
    std::mt19937_64 random(Catch::rngSeed());
    for (const RankLayout::SliceEntry& slice : layout.slices()) {
      bytes.emplace_back(slice.size_bytes());
      for (std::byte& byte : bytes.back()) byte = static_cast<std::byte>(random());
      digests.push_back(DigestBytes(bytes.back(), slice.first_word));
    }
  }
  FullWant Want(std::span<const RankSlice> slices) const {
    return {.layout = layout, .slices = slices, .expected = digests};
  }
  ByteSpan Of(const BlockRange& range) const {
    return ByteSpan(bytes[range.slice.value()])
        .subspan(FirstByte(layout, range), SizeBytes(layout, range));
  }
  Spool::Options Options(uint64_t memory) {
    return {.folder = "/tmp",
            .memory_bytes_max = memory,
            .size_bytes_max = uint64_t{1} << 30,
            .progress = &progress};
  }
};

TEST_CASE("full tensors are put together in any order, in memory and on disk", "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(2), RankSlice(3)};
  const uint64_t all = tensors.bytes[0].size() + tensors.bytes[2].size();
  const bool in_memory = GENERATE(true, false);
  const FullWant want = tensors.Want(slices);
  const auto assembly = FullAssembly::Create(want, tensors.Options(in_memory ? all : all - 1));
  REQUIRE(assembly.ok());
  FullAssembly& full = **assembly;
  CHECK(full.missing_blocks() == 5 + 4);
  CHECK_FALSE(full.Wants({.slice = RankSlice(1), .block_count = 1}));
  CHECK_FALSE(full.Wants({.slice = RankSlice(0), .first_block = 4, .block_count = 2}));
  CHECK_FALSE(full.Wants({.slice = RankSlice(9), .block_count = 1}));

  std::vector<std::byte> buffer;
  for (const BlockRange& range : {BlockRange{RankSlice(2), 2, 2}, BlockRange{RankSlice(0), 1, 3}}) {
    const MutableByteSpan room = full.Room(range, buffer);
    const ByteSpan bytes = tensors.Of(range);
    std::copy(bytes.begin(), bytes.end(), room.begin());
    REQUIRE(full.Take(range, room).ok());
  }
  CHECK(full.Missing() ==
        std::vector<BlockRange>{{RankSlice(0), 0, 1}, {RankSlice(0), 4, 1}, {RankSlice(2), 0, 2}});
  for (const BlockRange& range : full.Missing()) {
    REQUIRE(full.Take(range, tensors.Of(range)).ok());
  }
  CHECK(full.missing_blocks() == 0);
  CHECK(full.DropWrong().empty());
  CHECK(tensors.progress.done_bytes == all);
  CHECK(tensors.progress.total_bytes == all);

  const FetchedFull fetched = full.Finish();
  CHECK(fetched.spool.on_disk() != in_memory);
  CHECK(fetched.spool.memory_bytes() == (in_memory ? all : 0));
  Digest sum;
  for (const SpooledFrame& frame : fetched.frames) {
    const BlockRange range{frame.slice, frame.entry.first_block, frame.entry.block_count};
    const auto bytes = fetched.spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
    REQUIRE(bytes.ok());
    const ByteSpan expected = tensors.Of(range);
    CHECK(std::equal(bytes->begin(), bytes->end(), expected.begin(), expected.end()));
    sum += *frame.arrived;
  }
  CHECK(sum == tensors.digests[0] + tensors.digests[2]);
}

TEST_CASE("a block that comes again replaces what was there", "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0)};
  const FullWant want = tensors.Want(slices);
  const auto assembly = FullAssembly::Create(want, tensors.Options(uint64_t{1} << 24));
  REQUIRE(assembly.ok());
  const BlockRange torn{RankSlice(0), 2, 1};
  REQUIRE((*assembly)->Take(torn, std::vector<std::byte>(SizeBytes(tensors.layout, torn))).ok());
  for (const BlockRange& range : (*assembly)->Missing()) {
    REQUIRE((*assembly)->Take(range, tensors.Of(range)).ok());
  }
  CHECK((*assembly)->missing_blocks() == 0);
  SECTION("by the sender") {
    REQUIRE((*assembly)->Take(torn, tensors.Of(torn)).ok());
    CHECK((*assembly)->DropWrong().empty());
    CHECK(tensors.progress.done_bytes == tensors.bytes[0].size());
  }
  SECTION("else its slice is wrong, and all of it is missing again") {
    CHECK((*assembly)->DropWrong() == slices);
    CHECK((*assembly)->Missing() == std::vector<BlockRange>{{RankSlice(0), 0, 5}});
    CHECK(tensors.progress.done_bytes == 0);
  }
}

TEST_CASE("full tensors beyond what is supported are refused before memory is taken",
          "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0)};
  const FullWant want = tensors.Want(slices);
  Spool::Options options = tensors.Options(uint64_t{1} << 24);
  options.size_bytes_max = 1000;
  CHECK(absl::IsDataLoss(FullAssembly::Create(want, std::move(options)).status()));
  CHECK(tensors.progress.total_bytes == 0);
}

// Says of each slice that it arrived, but of one.
class Gpu final : public DeviceTarget {
 public:
  explicit Gpu(RankSlice damaged) : damaged_(damaged) {}
  bool Takes(TrainerRank, RankSlice slice) const override { return slice != RankSlice(1); }
  Result<std::vector<uint8_t>> Copy(TrainerRank, std::span<const LentSlice> slices) override {
    std::vector<uint8_t> arrived;
    for (const LentSlice& slice : slices) {
      asked.push_back(slice);
      arrived.push_back(slice.slice == damaged_ ? 0 : 1);
    }
    if (!failure.ok()) return failure;
    return arrived;
  }

  std::vector<LentSlice> asked;
  Status failure;

 private:
  const RankSlice damaged_;
};

TEST_CASE("a slice that was proved on a GPU is final, and others bring what was not",
          "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1), RankSlice(2)};
  Gpu gpu(RankSlice(2));
  FullWant want = tensors.Want(slices);
  want.device = &gpu;
  const auto assembly = FullAssembly::Create(want, tensors.Options(uint64_t{1} << 30));
  REQUIRE(assembly.ok());
  FullAssembly& full = **assembly;
  CHECK(full.TakesLent(RankSlice(0)));
  CHECK_FALSE(full.TakesLent(RankSlice(1)));
  REQUIRE(full.MakeRoom().ok());
  // A block of it has come before from elsewhere, and counts no more.
  const BlockRange early{.slice = RankSlice(2), .first_block = 1, .block_count = 1};
  REQUIRE(full.Take(early, tensors.Of(early)).ok());
  const auto wrong = full.TakeLent({{.slice = RankSlice(0)}, {.slice = RankSlice(2)}});
  REQUIRE(wrong.ok());
  CHECK(*wrong == std::vector<RankSlice>{RankSlice(2)});
  CHECK(gpu.asked[0].expected == tensors.digests[0]);
  CHECK(full.missing_blocks() == 1 + 4);
  CHECK(tensors.progress.done_bytes == tensors.bytes[0].size());

  const BlockRange again{.slice = RankSlice(0), .block_count = 5};
  full.Drop(again);
  REQUIRE(full.Take(again, std::vector<std::byte>(tensors.bytes[0].size())).ok());
  CHECK(full.missing_blocks() == 1 + 4);
  for (const BlockRange& range : full.Missing()) REQUIRE(full.Take(range, tensors.Of(range)).ok());
  CHECK(full.DropWrong().empty());
  const FetchedFull fetched = full.Finish();
  CHECK(fetched.on_device == std::vector<RankSlice>{RankSlice(0)});
  for (const SpooledFrame& frame : fetched.frames) CHECK(frame.slice != RankSlice(0));
  CHECK(fetched.direct_bytes == 0);
}

TEST_CASE("nothing is allocated for slices that a GPU takes, but for those that others bring",
          "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1), RankSlice(2)};
  Gpu gpu(RankSlice(9));
  FullWant want = tensors.Want(slices);
  want.device = &gpu;
  const auto assembly = FullAssembly::Create(want, tensors.Options(uint64_t{1} << 30));
  REQUIRE(assembly.ok());
  FullAssembly& full = **assembly;
  CHECK(full.memory().empty());
  REQUIRE(full.TakeLent({{.slice = RankSlice(0)}, {.slice = RankSlice(2)}}).ok());
  CHECK(full.memory().empty());
  REQUIRE(full.MakeRoom().ok());
  CHECK(full.memory().size() == tensors.bytes[1].size());
  REQUIRE(full.MakeRoom().ok());  // once is enough
  for (const BlockRange& range : full.Missing()) REQUIRE(full.Take(range, tensors.Of(range)).ok());
  CHECK(full.DropWrong().empty());
  const FetchedFull fetched = full.Finish();
  CHECK(fetched.on_device.size() == 2);
  std::vector<std::byte> buffer;
  for (const SpooledFrame& frame : fetched.frames) {
    CHECK(frame.slice == RankSlice(1));
    const auto bytes = fetched.spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
    REQUIRE(bytes.ok());
    const BlockRange range{.slice = frame.slice,
                           .first_block = frame.entry.first_block,
                           .block_count = frame.entry.block_count};
    CHECK(std::ranges::equal(*bytes, ByteSpan(tensors.Of(range))));
  }
}

TEST_CASE("a copy that fails leaves all of its slices missing, and is no error of the assembly",
          "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(2)};
  Gpu gpu(RankSlice(9));
  gpu.failure = InternalError("the device fails");
  FullWant want = tensors.Want(slices);
  want.device = &gpu;
  const auto assembly = FullAssembly::Create(want, tensors.Options(uint64_t{1} << 30));
  REQUIRE(assembly.ok());
  CHECK_FALSE((*assembly)->TakeLent({{.slice = RankSlice(0)}, {.slice = RankSlice(2)}}).ok());
  CHECK((*assembly)->missing_blocks() == 5 + 4);
  CHECK((*assembly)->failed().ok());
}

TEST_CASE("slices that have places are put there, in one piece or in runs", "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1), RankSlice(2)};
  const bool runs = GENERATE(false, true);
  // "a" is in runs of 1000 bytes, of which every other one belongs to somebody else.
  const size_t a = tensors.bytes[0].size();
  const size_t c = tensors.bytes[2].size();
  std::vector<std::byte> memory(64 + 2 * a + c, std::byte{0x5a});
  PlacedMemory placed{.memory = memory,
                      .places = {{.first_byte = 8, .run_bytes = a, .stride_bytes = 0},
                                 {.first_byte = 16 + 2 * a, .run_bytes = 28, .stride_bytes = 0},
                                 {.first_byte = 48 + 2 * a, .run_bytes = c, .stride_bytes = 0}}};
  if (runs) placed.places[0] = {.first_byte = 8, .run_bytes = 1000, .stride_bytes = 2000};
  FullWant want = tensors.Want(slices);
  want.placed = &placed;
  const auto assembly = FullAssembly::Create(want, tensors.Options(0));
  REQUIRE(assembly.ok());
  FullAssembly& full = **assembly;
  CHECK(full.memory().data() == (runs ? nullptr : memory.data()));

  std::vector<std::byte> buffer;
  for (const BlockRange& range : full.Missing()) {
    const ByteSpan bytes = tensors.Of(range);
    if (range.slice == RankSlice(2)) {
      REQUIRE(full.Take(range, bytes).ok());
      continue;
    }
    const MutableByteSpan room = full.Room(range, buffer);
    std::copy(bytes.begin(), bytes.end(), room.begin());
    REQUIRE(full.Take(range, room).ok());
  }
  CHECK(full.DropWrong().empty());
  const BlockRange torn{RankSlice(0), 1, 1};
  REQUIRE(full.Take(torn, std::vector<std::byte>(SizeBytes(tensors.layout, torn))).ok());
  CHECK(full.DropWrong() == std::vector<RankSlice>{RankSlice(0)});
  const BlockRange whole{RankSlice(0), 0, tensors.layout.slice(RankSlice(0)).blocks};
  REQUIRE(full.Take(whole, tensors.bytes[0]).ok());
  CHECK(full.missing_blocks() == 0);

  std::vector<std::byte> expected(memory.size(), std::byte{0x5a});
  for (size_t slice = 0; slice < slices.size(); ++slice) {
    const PlacedMemory::Place& place = placed.places[slice];
    for (size_t at = 0; at < tensors.bytes[slice].size(); ++at) {
      expected[place.first_byte + at / place.run_bytes * place.stride_bytes +
               at % place.run_bytes] = tensors.bytes[slice][at];
    }
  }
  CHECK(memory == expected);
  const FetchedFull fetched = full.Finish();
  CHECK(fetched.spool.memory_bytes() == 0);
  Digest sum;
  for (const SpooledFrame& frame : fetched.frames) sum += *frame.arrived;
  CHECK(sum == tensors.digests[0] + tensors.digests[1] + tensors.digests[2]);
}

TEST_CASE("a frame of a slice that a GPU has is dropped, and touches no other slice",
          "[full_assembly]") {
  Tensors tensors;
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1), RankSlice(2)};
  Gpu gpu(RankSlice(9));
  FullWant want = tensors.Want(slices);
  want.device = &gpu;
  const auto assembly = FullAssembly::Create(want, tensors.Options(uint64_t{1} << 30));
  REQUIRE(assembly.ok());
  FullAssembly& full = **assembly;
  const RankSlice lent(GENERATE(0U, 2U));  // before the others, and after them
  REQUIRE(full.TakeLent({{.slice = lent}}).ok());
  REQUIRE(full.MakeRoom().ok());
  std::vector<std::byte> buffer;
  for (const BlockRange& range : full.Missing()) REQUIRE(full.Take(range, tensors.Of(range)).ok());
  const BlockRange unasked{.slice = lent, .first_block = 0, .block_count = 1};
  const MutableByteSpan room = full.Room(unasked, buffer);
  std::ranges::copy(tensors.Of(unasked), room.begin());
  REQUIRE(full.Take(unasked, room).ok());
  const FetchedFull fetched = full.Finish();
  CHECK_FALSE(fetched.frames.empty());
  for (const SpooledFrame& frame : fetched.frames) {
    const BlockRange range{frame.slice, frame.entry.first_block, frame.entry.block_count};
    const auto bytes = fetched.spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
    REQUIRE(bytes.ok());
    INFO("slice " << frame.slice.value());
    CHECK(std::ranges::equal(*bytes, tensors.Of(range)));
  }
}

}  // namespace
}  // namespace dws
