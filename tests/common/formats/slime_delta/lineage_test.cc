#include "common/formats/slime_delta/local/lineage.h"

#include <catch2/catch.hpp>

#include "common/model/limits.h"

namespace dws::slime {
namespace {

LineageStep Delta(uint64_t version, const std::string& identity) {
  return {.version = version,
          .applied = {.identity = identity, .index = {}},
          .stream = "s",
          .full = false};
}

std::string ChainOf(const std::vector<std::string>& identities) {
  Lineage lineage{.since = 0};
  uint64_t version = 0;
  for (const std::string& identity : identities) {
    lineage = After(std::move(lineage), Delta(++version, identity));
  }
  return lineage.chain;
}

TEST_CASE("a chain identifies all versions and their order", "[slime]") {
  CHECK(ChainOf({"a", "empty"}) == ChainOf({"a", "empty"}));
  CHECK(ChainOf({"a", "empty"}) != ChainOf({"b", "empty"}));
  CHECK(ChainOf({"a", "b"}) != ChainOf({"b", "a"}));
  CHECK(ChainOf({"a"}) != ChainOf({"a", "empty"}));
  CHECK(ChainOf({"a"}) != "a");
}

TEST_CASE("a full checkpoint starts a chain and clears what was refused or doubted", "[slime]") {
  Lineage lineage = After({.since = 0, .refused = "r", .doubted = "d"}, Delta(1, "a"));
  lineage.refused = "r";
  lineage.doubted = "d";
  const LineageStep full{
      .version = 7, .applied = {.identity = "f", .index = {}}, .stream = "t", .full = true};
  const Lineage after = After(lineage, full);
  CHECK(after.since == 7);
  CHECK(after.stream == "t");
  CHECK(after.refused.empty());
  CHECK(after.doubted.empty());
  CHECK(after.applied.size() == 1);
  CHECK(after.applied.at(7).identity == "f");
  CHECK(after.chain == After({}, full).chain);
}

TEST_CASE("a lineage remembers a bounded number of versions and keeps where its chain starts",
          "[slime]") {
  Lineage lineage{.since = 0};
  constexpr uint64_t kVersions = limits::kSlimeAppliedMax + 3;
  for (uint64_t version = 1; version <= kVersions; ++version) {
    lineage = After(std::move(lineage), Delta(version, version == 1 ? "first" : "empty"));
  }
  CHECK(lineage.applied.size() == limits::kSlimeAppliedMax);
  CHECK(lineage.applied.begin()->first == 4);
  CHECK(lineage.since == 0);
}

TEST_CASE("the record of an applied version is read as it was written", "[slime]") {
  const AppliedVersion whole{
      .identity = "00ff",
      .index = FileStamp{
          .device = 1, .inode = ~uint64_t{0}, .size_bytes = 3, .modified_ns = -4, .changed_ns = 5}};
  CHECK(AppliedText(whole) == "00ff 1 18446744073709551615 3 -4 5");
  CHECK(ParseApplied(AppliedText(whole)) == whole);
  for (const char* const damaged : {"", " ", "00ff", "00ff ", "00ff 1 2 3 4", "00ff 1 2 3 4 5 6",
                                    "00ff 1 2 -3 4 5", "00ff 1 2 3 4 x"}) {
    INFO(damaged);
    CHECK_FALSE(ParseApplied(damaged).has_value());
  }
}

}  // namespace
}  // namespace dws::slime
