#include "common/transport/fabric/nearest_nic.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/transport/fabric/provider.h"

namespace dws {
namespace {

constexpr size_t kGbit = 1'000'000'000;

TEST_CASE("of several adapters the one beside the memory is taken", "[fabric]") {
  std::vector<Nic> nics = {{.domain = "a", .numa_node = 0, .bits_per_second = 400 * kGbit},
                           {.domain = "b", .numa_node = 1, .bits_per_second = 100 * kGbit},
                           {.domain = "c", .numa_node = 1, .bits_per_second = 200 * kGbit},
                           {.domain = "d", .numa_node = 1, .bits_per_second = 200 * kGbit}};
  CHECK(NearestNic(nics, 1) == 2);
  CHECK(NearestNic(nics, 0) == 0);
  // If all are far away, or their distance is unknown: the fastest.
  CHECK(NearestNic(nics, 7) == 0);
  CHECK(NearestNic(nics, std::nullopt) == 0);
  // A cable that is not plugged in carries nothing.
  nics[2].up = nics[3].up = false;
  CHECK(NearestNic(nics, 1) == 1);
  nics[1].up = false;
  CHECK(NearestNic(nics, 1) == 0);
}

TEST_CASE("among equal adapters libfabric's order counts, and without one there is none",
          "[fabric]") {
  const std::vector<Nic> same = {{.domain = "a"}, {.domain = "b"}};
  CHECK(NearestNic(same, 0) == 0);
  CHECK(NearestNic(same, std::nullopt) == 0);
  CHECK_FALSE(NearestNic({}, 0).has_value());
}

TEST_CASE("the node of memory is known once it is written", "[fabric]") {
  CHECK_FALSE(NumaNodeOf({}).has_value());
  const std::vector<std::byte> memory(size_t{1} << 22, std::byte{1});
  const auto node = NumaNodeOf(memory);
  if (!node.has_value()) {
    WARN("this kernel does not say where pages are");
    return;
  }
  CHECK(*node >= 0);
  CHECK_FALSE(NumaNodeOfPciDevice("ffff:ff:1f.7").has_value());
}

TEST_CASE("a provider is chosen by name", "[fabric]") {
  FabricChoice choice;
  CHECK_FALSE(choice.Allows(FabricProvider::kVerbs));
  REQUIRE(ParseFabricChoice("auto", choice));
  for (const FabricProvider provider : kFabricProviders) {
    CHECK(FindFabricProvider(ToString(provider)) == provider);
    const bool real = provider != FabricProvider::kShm;
    CHECK(choice.Allows(provider) == real);
    FabricChoice one;
    CHECK(ParseFabricChoice(ToString(provider), one) == real);
    if (!real) continue;
    CHECK(one == FabricChoice{.on = true, .only = provider});
    CHECK(one.Allows(provider));
    CHECK(one.Allows(FabricProvider::kTcp) == (provider == FabricProvider::kTcp));
  }
  CHECK_FALSE(ParseFabricChoice("tcp;ofi_rxm", choice));
  CHECK_FALSE(ParseFabricChoice("", choice));
  CHECK(choice == FabricChoice{.on = true});
  REQUIRE(ParseFabricChoice("off", choice));
  CHECK_FALSE(choice.Allows(FabricProvider::kTcp));
}

}  // namespace
}  // namespace dws
