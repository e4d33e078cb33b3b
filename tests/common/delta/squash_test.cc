// Squashing deltas: links that do not follow each other are refused instead of squashed into a
// wrong object.
#include "common/delta/squash.h"

#include <catch2/catch.hpp>

#include "tests/common/delta/objects.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::State;

// A delta, and the data that a link to it needs.
struct Delta {
  Delta(const RankLayout& layout, const State& before, const State& after, uint64_t base)
      : object(samples::SealObject(layout, samples::EncodeState(layout, before, after, {}), base)),
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

}  // namespace

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
