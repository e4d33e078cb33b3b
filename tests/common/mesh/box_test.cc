// Boxes and stripes against sets of elements.
#include "common/mesh/box.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <set>

#include "common/mesh/stripes.h"
#include "tests/common/delta/samples.h"

namespace dws::mesh {
namespace {

using Elements = std::multiset<Index>;

void AddTo(Elements& elements, const Box& box) {
  Index at;
  for (at[0] = box.lo[0]; at[0] < box.lo[0] + box.extent[0]; ++at[0]) {
    for (at[1] = box.lo[1]; at[1] < box.lo[1] + box.extent[1]; ++at[1]) {
      for (at[2] = box.lo[2]; at[2] < box.lo[2] + box.extent[2]; ++at[2]) {
        for (at[3] = box.lo[3]; at[3] < box.lo[3] + box.extent[3]; ++at[3]) elements.insert(at);
      }
    }
  }
}

Elements ElementsOf(const std::vector<Stripes>& parts) {
  Elements elements;
  for (const Stripes& part : parts) {
    for (uint64_t block = 0; block < part.count; ++block) AddTo(elements, Block(part, block));
  }
  return elements;
}

Stripes RandomStripes(samples::Random& random) {
  Stripes stripes;
  for (size_t d = 0; d < 3; ++d) {
    stripes.box.lo[d] = random.Below(5);
    stripes.box.extent[d] = 1 + random.Below(4);
  }
  if (random.Chance(0.3)) return stripes;
  stripes.dim = random.Below(3);
  stripes.count = 2 + random.Below(4);
  stripes.step = stripes.box.extent[stripes.dim] + random.Below(4);
  return stripes;
}

}  // namespace

TEST_CASE("a flat range is a few boxes with its elements in order", "[mesh]") {
  samples::Random random(samples::TestSeed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> shape(1 + random.Below(4));
    for (uint64_t& extent : shape) extent = 1 + random.Below(5);
    const Box whole = WholeBox(shape);
    const uint64_t begin = random.Below(Volume(whole) + 1);
    const uint64_t end = begin + random.Below(Volume(whole) - begin + 1);
    const std::vector<Box> boxes = FlatRangeBoxes(shape, begin, end);
    REQUIRE(boxes.size() <= 2 * shape.size() - 1);
    const Index strides = RowMajorStrides(whole.extent);
    uint64_t next = begin;
    for (const Box& box : boxes) {
      REQUIRE(Intersect(whole, box) == box);
      Elements elements;
      AddTo(elements, box);
      for (const Index& at : elements) {
        uint64_t flat = 0;
        for (size_t d = 0; d < at.size(); ++d) flat += at[d] * strides[d];
        REQUIRE(flat == next++);
      }
    }
    REQUIRE(next == end);
  }
}

TEST_CASE("stripes are clipped, intersected, subtracted and cut like sets of elements", "[mesh]") {
  samples::Random random(samples::TestSeed());
  for (int round = 0; round < 5000; ++round) {
    const Stripes a = RandomStripes(random);
    Stripes b = RandomStripes(random);
    if (random.Chance(0.5) && a.count > 1 && b.count > 1 && b.box.extent[a.dim] <= a.step) {
      b.dim = a.dim;
      b.step = a.step;
    }
    const Elements in_a = ElementsOf({a});
    const Elements in_b = ElementsOf({b});
    Elements both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                          std::inserter(both, both.end()));
    Elements only_a;
    std::set_difference(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                        std::inserter(only_a, only_a.end()));
    std::vector<Stripes> parts;
    Intersect(a, b, parts);
    REQUIRE(ElementsOf(parts) == both);
    REQUIRE(ElementsOf(Without({a}, b)) == only_a);
    REQUIRE(FindOverlap({a, b}).has_value() == !both.empty());
    REQUIRE(Volume(a) == in_a.size());
    REQUIRE(FindHole(a, {b}).has_value() == !only_a.empty());
    REQUIRE(CoverOnce({b}, a) == (in_a == in_b));
    std::vector<Stripes> once = Without({a}, b);
    REQUIRE(CoverOnce(once, a) == both.empty());
    once.insert(once.end(), parts.begin(), parts.end());
    REQUIRE(CoverOnce(once, a));
    REQUIRE_FALSE(FindHole(a, once).has_value());
    const uint64_t cut = random.Below(RowCount(a) + 1);
    parts.clear();
    CutRows(a, 0, cut, parts);
    REQUIRE(ElementsOf(parts).size() == in_a.size() / RowCount(a) * cut);
    CutRows(a, cut, RowCount(a), parts);
    REQUIRE(ElementsOf(parts) == in_a);
  }
}

TEST_CASE("parts with the right count cover nothing once if two of them overlap", "[mesh]") {
  const Stripes whole = OneBlock({.lo = {}, .extent = {8, 4, 1, 1}});
  const Stripes half = OneBlock({.lo = {}, .extent = {4, 4, 1, 1}});
  const Stripes other = OneBlock({.lo = {4}, .extent = {4, 4, 1, 1}});
  REQUIRE(CoverOnce({half, other}, whole));
  REQUIRE_FALSE(CoverOnce({half, half}, whole));  // as many elements as the whole
  REQUIRE_FALSE(CoverOnce({half}, whole));
  REQUIRE_FALSE(CoverOnce({half, OneBlock({.lo = {5}, .extent = {4, 4, 1, 1}})}, whole));
  const Stripes even{.box = {.lo = {}, .extent = {1, 4, 1, 1}}, .count = 4, .step = 2};
  Stripes odd = even;
  odd.box.lo[0] = 1;
  REQUIRE(CoverOnce({even, odd}, whole));
  REQUIRE_FALSE(CoverOnce({even, half}, whole));
}

TEST_CASE("taking stripes from a box needs no memory for each block", "[mesh]") {
  const uint64_t rows = uint64_t{1} << 40;
  const Stripes whole = OneBlock({.lo = {}, .extent = {rows, 4, 1, 1}});
  const Stripes even{.box = {.lo = {}, .extent = {1, 2, 1, 1}}, .count = rows / 2, .step = 2};
  const std::vector<Stripes> rest = Without({whole}, even);
  REQUIRE(rest.size() == 3);  // the columns beside, the odd rows, the last row
  REQUIRE(FindHole(whole, {even}).has_value());
  REQUIRE(CoverOnce({rest[0], rest[1], rest[2], even}, whole));
}

}  // namespace dws::mesh
