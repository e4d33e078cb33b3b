#include "common/service/history/recent_items.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace dws {
namespace {

TEST_CASE("the newest items are kept, the oldest first", "[recent_items]") {
  RecentItems<int> items(3);
  CHECK(items.All().empty());
  for (const int item : {1, 2}) items.Add(item);
  CHECK(items.All() == std::vector<int>{1, 2});
  for (const int item : {3, 4, 5}) items.Add(item);
  CHECK(items.All() == std::vector<int>{3, 4, 5});
}

TEST_CASE("changes begin with the newest item and stop when told", "[recent_items]") {
  RecentItems<int> items(3);
  items.ChangeWhile([](int&) { return true; });
  for (const int item : {1, 2, 3}) items.Add(item);
  items.ChangeWhile([](int& item) { return ++item > 3; });  // 3 becomes 4, 2 becomes 3
  CHECK(items.All() == std::vector<int>{1, 3, 4});
  items.ChangeWhile([](int& item) {
    item = 0;
    return true;
  });
  CHECK(items.All() == std::vector<int>{0, 0, 0});
}

TEST_CASE("one thread adds while another reads", "[recent_items]") {
  RecentItems<int> items(10);
  std::thread adding([&items] {
    for (int i = 0; i < 1000; ++i) items.Add(i);
  });
  for (int i = 0; i < 100; ++i) {
    const std::vector<int> seen = items.All();
    for (size_t at = 1; at < seen.size(); ++at) REQUIRE(seen[at] == seen[at - 1] + 1);
  }
  adding.join();
  CHECK(items.All().back() == 999);
}

}  // namespace
}  // namespace dws
