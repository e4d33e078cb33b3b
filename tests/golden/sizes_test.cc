// Encoded sizes are those of tests/golden/sizes.csv, byte by byte.
#include "tests/golden/sizes.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>

namespace dws::golden {
namespace {

// How to update the file after an intended change of a size.
constexpr const char* kRewrite =
    "If this is meant: tools/bazel.sh run //tests/golden:make_sizes > tests/golden/sizes.csv, and "
    "say in "
    "the commit why.\n(Columns object, manifest and dense-zstd also change with the version of "
    "zstd.)";

}  // namespace

TEST_CASE("encoded sizes are those of tests/golden/sizes.csv", "[golden]") {
  std::ifstream stream("tests/golden/sizes.csv");
  std::string header;
  REQUIRE(std::getline(stream, header));
  CHECK(header == SizesHeader());
  std::vector<std::string> expected;
  for (std::string row; std::getline(stream, row);) expected.push_back(row);
  REQUIRE(expected.size() > 30);

  const std::vector<std::string> found = SizesRows();
  const std::vector<std::string> differences = CompareSizes(expected, found);
  std::string text;
  for (const std::string& difference : differences) text += difference + "\n";
  INFO(fmt::format("{} rows differ from tests/golden/sizes.csv:\n{}{}", differences.size(), text,
                   kRewrite));
  REQUIRE(differences.empty());
  REQUIRE(found == expected);  // also in the same order
}

TEST_CASE("differences of sizes are named by row and column", "[golden]") {
  const std::vector<std::string> old_rows = {"a,relative,1,200,3,4,5,6,7,8,9,10",
                                             "b,full,1,2,3,4,5,6,7,8,9,10"};
  CHECK(CompareSizes(old_rows, old_rows).empty());
  const auto differences =
      CompareSizes(old_rows, {"a,relative,1,190,3,4,5,6,7,8,9,11", "c,full,1,2,3,4,5,6,7,8,9,10"});
  CHECK(differences ==
        std::vector<std::string>{
            "a, relative: object 200 -> 190 (-5.00 %); dense-zstd 10 -> 11 (+10.00 %)",
            "b, full: gone", "c, full: new"});
}

}  // namespace dws::golden
