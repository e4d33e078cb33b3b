// Blocks that a trainer has changed since the wanted version, and the deltas that turn them back.
#include "common/sources/memory_reader.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/model/limits.h"
#include "tests/common/delta/objects.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr WeightVersion kWanted(7);
constexpr WeightVersion kNewer(8);

// Two tensors of two blocks each.
RankLayout TwoTensors() {
  auto layout =
      RankLayout::Create({Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {131'072}}),
                          Shard::Whole({.name = "b", .dtype = DType::kBF16, .shape = {131'072}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

// A sender's memory: some blocks are as in the wanted version, the others as in the newer one.
class Memory final : public Source {
 public:
  Memory(const samples::State& wanted, const samples::State& newer)
      : wanted_(wanted), newer_(newer) {}

  std::string_view name() const override { return "memory"; }
  bool brings(Content content) const override { return content == Content::kFull; }
  bool reads_memory() const override { return true; }
  Status ReadFull(const Piece&, FullAssembly& assembly) override {
    ++reads;
    for (const BlockRange& range : assembly.Missing()) {
      for (uint32_t i = 0; i < range.block_count; ++i) {
        const BlockRange block{
            .slice = range.slice, .first_block = range.first_block + i, .block_count = 1};
        const std::optional<WeightVersion> at = changed(block);
        const samples::Bytes& slice = (at.has_value() ? newer_ : wanted_)[block.slice.value()];
        const ByteSpan bytes = ByteSpan(slice).subspan(FirstByte(assembly.layout(), block),
                                                       SizeBytes(assembly.layout(), block));
        if (!at.has_value()) {
          DWS_RETURN_IF_ERROR(assembly.Take(block, bytes));
          continue;
        }
        if (!assembly.has_room_for_newer()) continue;
        NewerBlock newer{.at = *at, .block = block, .bytes = {bytes.begin(), bytes.end()}};
        if (reads <= stale_reads) newer.bytes[5] ^= std::byte{1};
        assembly.KeepNewer(std::move(newer));
      }
    }
    return fails;
  }

  // The version that changed a block; none: it is as in the wanted version.
  std::function<std::optional<WeightVersion>(const BlockRange&)> changed = [](const BlockRange&) {
    return kNewer;
  };
  int stale_reads = 0;  // so many bring bytes of a version that was given up
  Status fails;
  int reads = 0;

 private:
  const samples::State& wanted_;
  const samples::State& newer_;
};

// Composes one delta.
class Deltas final : public Source {
 public:
  std::string_view name() const override { return "deltas"; }
  bool brings(Content content) const override { return content == Content::kDelta; }
  bool composes() const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& options) override {
    ++asked;
    CHECK(want.undo);
    CHECK(want.base == kWanted);
    if (asked <= aborts || piece.target.version != kNewer) return AbortedError("not retained");
    Spool spool(options);
    DWS_RETURN_IF_ERROR(spool.Append(samples::PartOf(object, layout, want.slices)));
    return DeltaRead::Object(std::move(spool));
  }

  RankLayout layout = TwoTensors();
  samples::Bytes object;
  int aborts = 0;
  int asked = 0;
};

struct Case {
  explicit Case(double density = 0.01, const EncodeOptions& how = {}) {
    samples::Random random(11);
    for (const samples::Bytes& slice : wanted) {
      newer.push_back(samples::Nudge(random, DType::kBF16, slice, density, 4));
    }
    encoding = samples::EncodeState(layout, wanted, newer, how);
    DeltaManifest identity = samples::Identity(layout, encoding, kWanted.value());
    target.stream = identity.stream;
    target.ranks.resize(identity.trainer_rank.value() + 1);
    rank = identity.trainer_rank;
    deltas.object = samples::SealObject(encoding, std::move(identity));
    Seal();
  }
  void Seal() {
    assembly = *FullAssembly::Create(
        {.layout = layout, .slices = slices, .expected = encoding.before}, options);
  }
  Status Read(bool required = false) {
    const Piece piece{.target = target, .rank = rank};
    MemoryReader reader({.memory = memory,
                         .deltas = with_deltas ? &deltas : nullptr,
                         .piece = piece,
                         .spool = options,
                         .required = required,
                         .sleep = [this](Duration time) {
                           slept += time;
                           return ++sleeps != cancelled_at;
                         }});
    Status read = reader.Read(*assembly);
    turned = reader.turned();
    delta_bytes = reader.delta_bytes();
    return read;
  }
  bool right() { return assembly->missing_blocks() == 0 && assembly->DropWrong().empty(); }

  const RankLayout layout = TwoTensors();
  const samples::State wanted = samples::RandomState(layout, 3);
  samples::State newer;
  samples::Encoding encoding;  // from `wanted` to `newer`
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1)};
  SyncTarget target{.stream = {}, .version = kWanted, .ranks = {}};
  TrainerRank rank;
  Memory memory{wanted, newer};
  Deltas deltas;
  bool with_deltas = true;
  Spool::Options options{
      .folder = "/tmp", .memory_bytes_max = uint64_t{1} << 24, .size_bytes_max = uint64_t{1} << 24};
  std::unique_ptr<FullAssembly> assembly;
  Status turned;
  uint64_t delta_bytes = 0;
  Duration slept = {};
  int sleeps = 0;
  int cancelled_at = 0;  // 0: never
};

}  // namespace

TEST_CASE("changed blocks are turned back by the delta of their slices", "[sources]") {
  Case it;
  SECTION("all") {
    REQUIRE(it.Read().ok());
    CHECK(it.delta_bytes == it.deltas.object.size());
  }
  SECTION("those of one slice") {
    it.memory.changed = [](const BlockRange& block) {
      return block.slice == RankSlice(1) ? std::optional(kNewer) : std::nullopt;
    };
    REQUIRE(it.Read().ok());
    CHECK(it.delta_bytes < it.deltas.object.size());
  }
  SECTION("none") {
    it.memory.changed = [](const BlockRange&) { return std::nullopt; };
    REQUIRE(it.Read().ok());
    CHECK(it.deltas.asked == 0);
  }
  SECTION("some at a time, where there is little room") {
    it.options.memory_bytes_max = 1;
    it.Seal();
    REQUIRE(it.Read().ok());
    CHECK(it.memory.reads > 1);
  }
  CHECK(it.turned.ok());
  CHECK(it.right());
}

TEST_CASE("a version that is not published yet is waited for, not for ever", "[sources]") {
  Case it;
  const bool required = GENERATE(false, true);
  SECTION("it comes") {
    it.deltas.aborts = 5;
    REQUIRE(it.Read(required).ok());
    CHECK(it.sleeps == 5);
    CHECK(it.right());
  }
  SECTION("it does not") {
    it.deltas.aborts = 1'000'000;
    REQUIRE(it.Read(required).ok());
    CHECK(absl::IsAborted(it.turned));
    CHECK(it.assembly->missing_blocks() == 4);
    CHECK(it.slept >= std::chrono::seconds(required ? 10 : 1));
    CHECK(it.slept < std::chrono::seconds(required ? 11 : 2));
  }
  SECTION("the receiver stops") {
    it.deltas.aborts = 1'000'000;
    it.cancelled_at = 3;
    CHECK(absl::IsCancelled(it.Read(required)));
    CHECK(it.sleeps == 3);
  }
}

TEST_CASE("what cannot be turned back stays missing, and the reason is told", "[sources]") {
  SECTION("new values tell no old ones") {
    Case it(0.9, {.relative = false, .absolute = true});
    REQUIRE(it.Read().ok());
    CHECK(absl::IsFailedPrecondition(it.turned));
    CHECK(it.assembly->missing_blocks() == 4);
  }
  Case it;
  SECTION("another delta") {
    it.target.stream.incarnation += 1;
    REQUIRE(it.Read().ok());
    CHECK(absl::IsDataLoss(it.turned));
    CHECK(it.assembly->missing_blocks() == 4);
  }
  SECTION("a damaged delta") {
    it.deltas.object.back() ^= std::byte{1};
    REQUIRE(it.Read().ok());
    CHECK(absl::IsDataLoss(it.turned));
    CHECK(it.assembly->missing_blocks() > 0);
  }
  SECTION("nobody composes deltas") {
    it.with_deltas = false;
    REQUIRE(it.Read().ok());
    CHECK_THAT(ToString(it.turned), Contains("no source composes deltas"));
  }
  SECTION("stamps of versions that nobody has") {
    it.memory.changed = [](const BlockRange& block) {
      return WeightVersion(100 + block.slice.value() * 2 + block.first_block);
    };
    REQUIRE(it.Read().ok());
    CHECK(absl::IsAborted(it.turned));
    CHECK(it.assembly->missing_blocks() == 4);
  }
  SECTION("the memory cannot be read to its end: what came is turned back") {
    it.memory.fails = UnavailableError("gone");
    CHECK(it.Read() == it.memory.fails);
    CHECK(it.right());
  }
}

TEST_CASE("blocks of a version that was given up and published again are read once more",
          "[sources]") {
  Case it;
  it.memory.stale_reads = GENERATE(1, 2);
  REQUIRE(it.Read().ok());
  CHECK(it.memory.reads == 2);
  CHECK(it.right() == (it.memory.stale_reads == 1));
}

}  // namespace dws
