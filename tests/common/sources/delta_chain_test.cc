// How the frames of a delta reach their taker: from a published object, or while it is captured.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/sources/source_chain.h"
#include "common/spool/fetched_object.h"
#include "tests/common/delta/objects.h"

namespace dws {
namespace {

// Two tensors of several frames each.
RankLayout Layout() {
  auto layout = RankLayout::Create(
      {Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {1'000'000}, .cuts = {}}),
       Shard::Whole({.name = "b", .dtype = DType::kBF16, .shape = {1'000'000}, .cuts = {}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

// A source that has one delta, as an object and while it is captured.
class Scripted final : public Source {
 public:
  std::string_view name() const override { return "scripted"; }
  bool brings(Content content) const override { return content == Content::kDelta; }
  bool reads_captures(Content, const Piece&) const override { return captures; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& options) override {
    ++asked;
    DWS_RETURN_IF_ERROR(fails);
    Spool spool(options);
    DWS_RETURN_IF_ERROR(spool.Append(samples::PartOf(object, *piece.of().layout, want.slices)));
    return DeltaRead::Object(std::move(spool));
  }
  Result<std::vector<std::byte>> ReadDeltaCapture(const Piece& piece, const DeltaWant&,
                                                  const Spool::Options& options,
                                                  const FrameTaker& take) override {
    Spool whole(options);
    DWS_RETURN_IF_ERROR(whole.Append(object));
    DWS_ASSIGN_OR_RETURN(const FetchedObject parsed, ParseObject(whole, *piece.of().layout));
    for (size_t i = 0; i < std::min(parsed.frames.size(), frames_max); ++i) {
      SpooledFrame frame = parsed.frames[i];
      Spool spool(options);
      DWS_RETURN_IF_ERROR(
          spool.Append(ByteSpan(object).subspan(frame.spool_offset, frame.entry.size_bytes)));
      frame.spool_offset = 0;
      DWS_RETURN_IF_ERROR(take(std::span(&frame, 1), spool));
    }
    DWS_RETURN_IF_ERROR(breaks);
    return std::vector<std::byte>(object.begin(),
                                  object.begin() + static_cast<ptrdiff_t>(parsed.frames_begin));
  }

  std::vector<std::byte> object;
  bool captures = true;
  size_t frames_max = SIZE_MAX;  // while it is captured
  Status breaks;                 // after them
  Status fails;                  // once it is published
  int asked = 0;                 // for the published object
};

// Remembers what it takes, and checks that it is the object's.
class Taker final : public DeltaTaker {
 public:
  explicit Taker(const std::vector<std::byte>& object) : object_(object) {}

  Status Take(std::span<const SpooledFrame> frames, const Spool& spool) override {
    ++calls;
    for (const SpooledFrame& frame : frames) {
      std::vector<std::byte> buffer;
      const auto bytes = spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
      REQUIRE(bytes.ok());
      CHECK(std::search(object_.begin(), object_.end(), bytes->begin(), bytes->end()) !=
            object_.end());
      CHECK(taken.emplace(frame.slice, frame.entry.first_block).second);
    }
    return fails;
  }
  bool Has(RankSlice slice, const FrameEntry& entry) const override {
    return taken.contains({slice, entry.first_block});
  }

  std::set<std::pair<RankSlice, uint32_t>> taken;
  int calls = 0;
  Status fails;

 private:
  const std::vector<std::byte>& object_;
};

struct Case {
  explicit Case(uint64_t nonce) {
    target.version = WeightVersion(7);
    target.ranks.push_back({.sender = SenderIndex(0),
                            .nonce = nonce,
                            .layout = std::make_shared<const RankLayout>(layout)});
    const samples::Encoding encoding = samples::EncodeState(layout, samples::RandomState(layout, 1),
                                                            samples::RandomState(layout, 9), {});
    source.object = samples::SealObject(layout, encoding, 6);
    for (const auto& blocks : encoding.blocks) REQUIRE_FALSE(blocks.empty());
  }
  Result<FetchedDelta> Read() {
    return chain.Delta(piece, {.base = WeightVersion(6), .slices = slices}, options, taker);
  }
  uint64_t came() const { return chain.totals().at(0).bytes; }

  const RankLayout layout = Layout();
  SyncTarget target;
  const Piece piece{.target = target, .rank = TrainerRank(0)};
  SliceSelection slices;
  Scripted source;
  SourceChain chain{{&source}, {}};
  Taker taker{source.object};
  Spool::Options options{
      .folder = "/tmp", .memory_bytes_max = uint64_t{1} << 24, .size_bytes_max = uint64_t{1} << 24};
};

size_t FrameCount(const DeltaManifest& manifest) {
  size_t frames = 0;
  for (const SliceDelta& slice : manifest.slices) frames += slice.frames.size();
  return frames;
}

}  // namespace

TEST_CASE("a published delta is handed over as a whole", "[sources]") {
  Case it(1);
  const bool part = GENERATE(false, true);
  if (part) it.slices = std::vector{RankSlice(1)};
  const auto delta = it.Read();
  REQUIRE(delta.ok());
  CHECK(it.taker.calls == 1);
  CHECK(delta->manifest.slices.size() == 2);
  REQUIRE(delta->object.has_value());
  CHECK(delta->bytes == delta->object->size_bytes());
  CHECK((delta->bytes < it.source.object.size()) == part);
  CHECK(delta->frames.size() == it.taker.taken.size());
  CHECK((it.taker.taken.size() < FrameCount(delta->manifest)) == part);
  CHECK(it.taker.taken.contains({RankSlice(1), 0}));
}

TEST_CASE("a published delta that is damaged or is not taken is an error", "[sources]") {
  Case it(1);
  SECTION("damaged") {
    it.source.object[0] ^= std::byte{1};
    CHECK(absl::IsDataLoss(it.Read().status()));
    CHECK(it.taker.calls == 0);
  }
  SECTION("not taken") {
    it.taker.fails = InternalError("the device fails");
    CHECK(it.Read().status() == it.taker.fails);
  }
}

TEST_CASE("a delta in the making is taken frame by frame", "[sources]") {
  Case it(0);
  CHECK(it.chain.reads_captures(Content::kDelta, it.piece));
  const auto delta = it.Read();
  REQUIRE(delta.ok());
  CHECK(it.taker.taken.size() == FrameCount(delta->manifest));
  CHECK(it.taker.calls == static_cast<int>(it.taker.taken.size()));
  CHECK_FALSE(delta->object.has_value());
  CHECK(delta->bytes == it.source.object.size());
  CHECK(it.came() == delta->bytes);
  CHECK(it.source.asked == 0);
  CHECK(it.chain.last(SenderIndex(0), Content::kDelta).source == "scripted");
}

TEST_CASE("what had not come when the link was lost comes from the published object", "[sources]") {
  Case it(0);
  it.source.frames_max = GENERATE(size_t{0}, size_t{1}, size_t{3}, SIZE_MAX);
  it.source.breaks = UnavailableError("the link is down");
  SECTION("it is published") {
    const auto delta = it.Read();
    REQUIRE(delta.ok());
    REQUIRE(FrameCount(delta->manifest) > 3);
    CHECK(it.taker.taken.size() == FrameCount(delta->manifest));
    CHECK(it.source.asked == (it.source.frames_max == SIZE_MAX ? 1 : 2));
    CHECK(delta->bytes == it.source.object.size());  // nothing came twice
    CHECK(it.came() == delta->bytes);
  }
  SECTION("it is not") {
    it.source.fails = AbortedError("not retained");
    CHECK(it.Read().status() == it.source.fails);
    CHECK((it.came() > 0) == (it.source.frames_max > 0));  // they came all the same
  }
}

TEST_CASE("a delta in the making that comes to nothing", "[sources]") {
  Case it(0);
  SECTION("no source reads captures") {
    it.source.captures = false;
    CHECK_FALSE(it.chain.reads_captures(Content::kDelta, it.piece));
    CHECK(absl::IsAborted(it.Read().status()));
  }
  SECTION("it is given up") {
    it.source.breaks = AbortedError("given up");
    CHECK(it.Read().status() == it.source.breaks);
  }
  SECTION("it does not fit") {
    it.taker.fails = ResourceExhaustedError("full");
    CHECK(it.Read().status() == it.taker.fails);
    CHECK(it.taker.calls == 1);
  }
  CHECK(it.source.asked == 0);
}

}  // namespace dws
