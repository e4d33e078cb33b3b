// Every byte range of every part of an object equals the same range of the part's bytes.
#include "common/delta/objects/object_part.h"

#include <catch2/catch.hpp>

#include "common/delta/objects/object.h"
#include "tests/common/delta/objects.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;

Bytes BytesIn(const Bytes& object, const std::vector<ObjectRange>& ranges) {
  Bytes bytes;
  for (const ObjectRange& range : ranges) {
    REQUIRE(range.size_bytes > 0);
    REQUIRE(range.offset + range.size_bytes <= object.size());
    bytes.insert(bytes.end(), object.begin() + static_cast<long>(range.offset),
                 object.begin() + static_cast<long>(range.offset + range.size_bytes));
  }
  return bytes;
}

}  // namespace

TEST_CASE("ranges within a part are those of its bytes one after the other", "[object]") {
  const TensorSpec spec{.name = "w",
                        .dtype = DType::kBF16,
                        .shape = {12, 40},
                        .cuts = {{0, {3, 6}}, {1, {10, 20, 30}}}};
  const RankLayout layout = *RankLayout::Create({Shard::Whole(spec)});
  const samples::State before = samples::RandomState(layout, 3);
  const samples::State after = samples::RandomState(layout, 4);
  const Bytes object =
      samples::SealObject(layout, samples::EncodeState(layout, before, after, {}), 1);
  const ObjectHeader header = *ParseObjectHeader(object);
  const DeltaManifest manifest = *ParseObjectManifest(object, layout);
  const std::vector<SliceSelection> selections = {
      std::nullopt, std::vector<RankSlice>{},
      std::vector<RankSlice>{RankSlice(1), RankSlice(2), RankSlice(7)},
      std::vector<RankSlice>{RankSlice(0), RankSlice(11)}};
  for (const SliceSelection& selection : selections) {
    const std::vector<ObjectRange> ranges = PartRanges(header, manifest, selection);
    const Bytes part = BytesIn(object, ranges);
    REQUIRE(part == samples::PartOf(object, layout, selection));
    REQUIRE(SizeOf(ranges) == part.size());
    for (size_t offset = 0; offset < part.size(); offset += 7) {
      for (const size_t length : {size_t{1}, size_t{100}, part.size() - offset}) {
        const size_t end = std::min(offset + length, part.size());
        const Bytes expected(part.begin() + static_cast<long>(offset),
                             part.begin() + static_cast<long>(end));
        REQUIRE(BytesIn(object, Within(ranges, offset, end - offset)) == expected);
      }
    }
  }
}

}  // namespace dws
