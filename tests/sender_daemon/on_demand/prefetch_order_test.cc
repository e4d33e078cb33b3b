#include "sender_daemon/on_demand/gather/prefetch_order.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

std::vector<UnitIndex> Units(const std::vector<uint32_t>& numbers) {
  std::vector<UnitIndex> units;
  for (const uint32_t number : numbers) units.emplace_back(number);
  return units;
}

}  // namespace

TEST_CASE("from the second microbatch on the next units of the first one are told", "[arena]") {
  PrefetchOrder order;
  order.Begin();
  // Forward, and backward.
  for (const uint32_t unit : {0U, 1U, 2U, 2U, 1U, 0U}) {
    CHECK(order.Next(UnitIndex(unit), 2).empty());
  }
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    order.Begin();
    CHECK(order.Next(UnitIndex(0), 2) == Units({1, 2}));
    CHECK(order.Next(UnitIndex(1), 2) == Units({2, 2}));
    CHECK(order.Next(UnitIndex(2), 2) == Units({2, 1}));
    CHECK(order.Next(UnitIndex(2), 2) == Units({1, 0}));
    CHECK(order.Next(UnitIndex(1), 2) == Units({0}));
    CHECK(order.Next(UnitIndex(0), 2).empty());
  }
}

TEST_CASE("a microbatch that leaves units out goes on behind them", "[arena]") {
  PrefetchOrder order;
  for (const uint32_t unit : {0U, 1U, 2U, 3U}) CHECK(order.Next(UnitIndex(unit), 1).empty());
  order.Begin();
  CHECK(order.Next(UnitIndex(2), 1) == Units({3}));
  CHECK(order.Next(UnitIndex(9), 1).empty());  // not in the order
  CHECK(order.Next(UnitIndex(3), 1).empty());
}

TEST_CASE("a rank without a microbatch leaves the order to the first one that has units",
          "[arena]") {
  PrefetchOrder order;
  order.Begin();
  order.Begin();
  CHECK(order.Next(UnitIndex(4), 1).empty());
  CHECK(order.Next(UnitIndex(5), 1).empty());
  order.Begin();
  CHECK(order.Next(UnitIndex(4), 1) == Units({5}));
}

}  // namespace dws
