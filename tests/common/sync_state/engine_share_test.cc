#include "common/sync_state/engine_share.h"

#include <catch2/catch.hpp>
#include <string_view>
#include <vector>

namespace dws {
namespace {

// One letter for each slice: h(eld), x (excluded), b(oth), - neither.
EngineShare Share(std::string_view slices) {
  EngineShare share;
  for (const char c : slices) {
    share.held.push_back(c == 'h' || c == 'b');
    share.excluded.push_back(c == 'x' || c == 'b');
  }
  return share;
}

std::optional<size_t> Unheld(std::vector<std::string_view> receivers) {
  std::vector<EngineShare> shares;
  for (const std::string_view slices : receivers) shares.push_back(Share(slices));
  std::vector<const EngineShare*> pointers;
  for (const EngineShare& share : shares) pointers.push_back(&share);
  return FirstUnheld(pointers);
}

}  // namespace

TEST_CASE("the first slice that nobody holds and not all exclude is found", "[protocol]") {
  CHECK(Unheld({""}) == std::nullopt);
  CHECK(Unheld({"hh"}) == std::nullopt);
  CHECK(Unheld({"hxh"}) == std::nullopt);
  CHECK(Unheld({"h-h"}) == 1);
  CHECK(Unheld({"h-", "-h"}) == std::nullopt);
  CHECK(Unheld({"hh", "-h"}) == std::nullopt);  // a replica
  CHECK(Unheld({"hh--", "hh--"}) == 2);         // both hold only the first half
  CHECK(Unheld({"hx", "xx"}) == std::nullopt);
  CHECK(Unheld({"hx", "xh"}) == std::nullopt);  // another stage of a pipeline
  CHECK(Unheld({"hxx", "xh-"}) == 2);  // a receiver that does not exclude slice 2 has to hold it
  CHECK(Unheld({"bb"}) == std::nullopt);
  CHECK(Unheld({"---", "---", "hh-"}) == 2);
}

TEST_CASE("shares of different layouts are incomplete", "[protocol]") {
  CHECK(Unheld({"hh", "hhh"}) == 2);
  CHECK(Unheld({"", "h"}) == 0);
  CHECK(Unheld({"h-", "h-h"}) == 1);
}

}  // namespace dws
