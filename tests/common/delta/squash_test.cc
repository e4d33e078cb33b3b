// Squashing deltas: class-split ones over the weights that they begin with. Links that do not
// follow each other are refused instead of squashed into a wrong object.
#include "common/delta/squash.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"
#include "tests/common/delta/objects.h"
#include "tests/common/delta/old_state.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::State;

constexpr ClassTable kTable{
    .thresholds = {60, 120, 200}, .threshold_count = 3, .hot_below = 90, .hot_scale = 95};

// With `split`, all blocks of floats are class-split.
Bytes Seal(const RankLayout& layout, const State& before, const State& after, uint64_t base,
           bool split) {
  samples::Encoding encoding = samples::EncodeState(layout, before, after, {});
  if (split) samples::SplitEveryBlock(layout, before, after, kTable, encoding);
  return samples::SealObject(layout, encoding, base);
}

// A delta, and the data that a link to it needs.
struct Delta {
  Delta(const RankLayout& layout, const State& before, const State& after, uint64_t base,
        bool split = false)
      : object(Seal(layout, before, after, base, split)),
        header(*ParseObjectHeader(object)),
        manifest(*ParseObjectManifest(object, layout)) {}

  DeltaLink Link() const {
    return {.manifest = &manifest,
            .frame = [this](const FrameEntry& entry, Bytes& /*buffer*/) -> Result<ByteSpan> {
              return FrameBytes(object, header, entry);
            }};
  }

  Bytes object;
  ObjectHeader header;
  DeltaManifest manifest;
};

// A state in memory, which has other bytes of slice `other`.
class OldState final : public samples::OldState {
 public:
  using samples::OldState::OldState;

  bool Has(RankSlice slice, const Digest& digest) const override {
    return slice != other && samples::OldState::Has(slice, digest);
  }
  Status Read(RankSlice slice, uint32_t first_block, MutableByteSpan out) const override {
    DWS_CHECK(slice != other);
    read_bytes += out.size();
    return fail.ok() ? samples::OldState::Read(slice, first_block, out) : fail;
  }

  std::optional<RankSlice> other;
  Status fail;
  mutable uint64_t read_bytes = 0;
};

// Class-split chains of tensors with several blocks, more than are composed at a time, one block,
// and no floats.
struct SplitChain {
  SplitChain() {
    for (int version = 1; version <= 3; ++version) {
      State next = states.back();
      for (size_t s = 0; s < next.size(); ++s) {
        const DType dtype = layout.slices()[s].dtype;
        // The last never changes, and a version may leave another alone.
        if (s == 4 || (s == 3 && version == 2)) continue;
        next[s] = samples::Nudge(random, dtype, next[s], 0.02, 6);
      }
      // Blocks that change back: nothing is left of them.
      if (version == 3) {
        std::copy_n(states[1][0].begin(), 2 * limits::kBlockElements, next[0].begin());
      }
      // The second is not class-split.
      deltas.emplace_back(
          std::make_unique<Delta>(layout, states.back(), next, version, version != 2));
      states.push_back(std::move(next));
    }
    for (const auto& delta : deltas) links.push_back(delta->Link());
  }

  Result<Bytes> Over(const OldWeights& old, uint64_t bytes_max = uint64_t{1} << 30) {
    return SquashOver(layout, links, old, bytes_max, pool);
  }

  const RankLayout layout = *RankLayout::Create(
      {{.tensor = {.name = "a_bf16", .dtype = DType::kBF16, .shape = {70, 65'536}}},
       {.tensor = {.name = "b_f32", .dtype = DType::kF32, .shape = {70'001}}},
       {.tensor = {.name = "c_norm", .dtype = DType::kBF16, .shape = {1000}}},
       {.tensor = {.name = "d_bytes", .dtype = DType::kU8, .shape = {90'000}}},
       {.tensor = {.name = "e_still", .dtype = DType::kU8, .shape = {5}}}});
  samples::Random random{samples::TestSeed()};
  std::vector<State> states = {samples::RandomState(layout, 1)};
  std::vector<std::unique_ptr<Delta>> deltas;
  std::vector<DeltaLink> links;
  ThreadPool pool{2};
};

}  // namespace

TEST_CASE("class-split deltas are squashed over the weights that they begin with", "[delta]") {
  SplitChain chain;
  REQUIRE(NeedsOldWeights(chain.links[0]));
  REQUIRE_FALSE(NeedsOldWeights(chain.links[1]));
  CHECK(absl::IsDataLoss(Squash(chain.layout, chain.links).status()));
  const OldState old(chain.layout, chain.states[0]);
  const auto squashed = chain.Over(old);
  INFO(ToString(squashed.status()));
  REQUIRE(squashed.ok());
  State state = chain.states[0];
  CHECK(samples::ApplyObject(*squashed, chain.layout, true, state).ok());
  CHECK(state == chain.states[3]);
  // The result is the same as if the ends had been compared.
  const Delta direct(chain.layout, chain.states[0], chain.states[3], 3);
  CHECK(ParseObjectManifest(*squashed, chain.layout)->slices == direct.manifest.slices);
  CHECK(ParseObjectManifest(*squashed, chain.layout)->base_version == WeightVersion(1));
  CHECK(old.read_bytes <= chain.layout.size_bytes());
}

TEST_CASE("a slice with other old weights is named in a squash and not changed by it", "[delta]") {
  SplitChain chain;
  OldState old(chain.layout, chain.states[0]);
  old.other = RankSlice(GENERATE(0, 1, 2));
  const auto squashed = chain.Over(old);
  REQUIRE(squashed.ok());
  const DeltaManifest manifest = *ParseObjectManifest(*squashed, chain.layout);
  REQUIRE(manifest.slices.size() == 4);
  for (const SliceDelta& slice : manifest.slices) {
    const Delta direct(chain.layout, chain.states[0], chain.states[3], 3);
    const SliceDelta& expected = direct.manifest.slices[slice.slice.value()];
    CHECK(slice.before == expected.before);
    CHECK(slice.after == expected.after);
    CHECK((slice.nnz == 0) == (slice.slice == old.other));
    if (slice.slice != old.other) continue;
    REQUIRE(slice.frames.size() == 1);
    const ObjectHeader header = *ParseObjectHeader(*squashed);
    const auto blocks = ParseFrame(FrameBytes(*squashed, header, slice.frames[0]), slice.frames[0]);
    REQUIRE(blocks.ok());
    REQUIRE(blocks->size() == 1);
    CHECK(blocks->front().mode == BlockMode::kEmpty);
  }
  // A receiver that applies it sees from the digest that this slice is not the new one.
  State state = chain.states[0];
  CHECK(absl::IsDataLoss(samples::ApplyObject(*squashed, chain.layout, true, state)));
}

TEST_CASE("a squash over old weights ends at its limit and with their error", "[delta]") {
  SplitChain chain;
  OldState old(chain.layout, chain.states[0]);
  const ObjectHeader header = *ParseObjectHeader(*chain.Over(old));
  CHECK(chain.Over(old, header.frames_bytes).ok());
  const Status large = chain.Over(old, header.frames_bytes - 1).status();
  CHECK(absl::IsResourceExhausted(large));
  CHECK(std::string(Message(large)).find("3 deltas") != std::string::npos);
  for (const Status& error :
       {InternalError("the device has gone"), ResourceExhaustedError("the device has no memory")}) {
    old.fail = error;
    CHECK(chain.Over(old).status() == error);
  }
}

TEST_CASE("a slice whose memory has changed since its digest was taken costs no other", "[delta]") {
  SplitChain chain;
  // The digests are right, the first slice's bytes are not.
  class Changed final : public OldWeights {
   public:
    explicit Changed(const OldWeights& old) : old_(old) {}
    bool Has(RankSlice slice, const Digest& digest) const override {
      return old_.Has(slice, digest);
    }
    Status Read(RankSlice slice, uint32_t first_block, MutableByteSpan out) const override {
      if (slice != RankSlice(0)) return old_.Read(slice, first_block, out);
      std::ranges::fill(out, std::byte{0});
      return OkStatus();
    }

   private:
    const OldWeights& old_;
  };
  const OldState old(chain.layout, chain.states[0]);
  const auto squashed = chain.Over(Changed(old));
  REQUIRE(squashed.ok());
  State state = chain.states[0];
  CHECK(absl::IsDataLoss(samples::ApplyObject(*squashed, chain.layout, true, state)));
  const DeltaManifest manifest = *ParseObjectManifest(*squashed, chain.layout);
  for (const SliceDelta& slice : manifest.slices) {
    CHECK((slice.nnz == 0) == (slice.slice == RankSlice(0)));
  }
}

TEST_CASE("a delta whose base differs from the end of the delta before it is not squashed",
          "[delta]") {
  const Result<RankLayout> layout =
      RankLayout::Create({{.tensor = {.name = "kept", .shape = {500}}},
                          {.tensor = {.name = "trained", .shape = {500}}}});
  REQUIRE(layout.ok());
  std::vector<State> states = {samples::RandomState(*layout, 1)};
  for (uint64_t v = 0; v < 3; ++v) {
    states.push_back(states.back());
    for (size_t i = 0; i <= v; ++i) states.back()[1][2 * i] ^= std::byte{1};
  }
  const Delta first(*layout, states[0], states[1], 1);
  const Delta next(*layout, states[1], states[2], 2);
  const Delta other(*layout, states[2], states[3], 2);  // claims base version 2, has base 3

  const std::vector<DeltaLink> chain = {first.Link(), next.Link()};
  const auto squashed = Squash(*layout, chain);
  REQUIRE(squashed.ok());
  State state = states[0];
  CHECK(samples::ApplyObject(*squashed, *layout, true, state).ok());
  CHECK(state == states[2]);

  const std::vector<DeltaLink> broken = {first.Link(), other.Link()};
  const Status refused = Squash(*layout, broken).status();
  CHECK(absl::IsDataLoss(refused));
  INFO(ToString(refused));
  CHECK(ToString(refused).find("'trained'") != std::string::npos);
  CHECK(ToString(refused).find("from version 2 to 3") != std::string::npos);
}

}  // namespace dws
