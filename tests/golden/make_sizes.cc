// Writes the content of tests/golden/sizes.csv to stdout.
#include <fmt/format.h>

#include "tests/golden/sizes.h"

int main() {
  fmt::print("{}\n", dws::golden::SizesHeader());
  for (const std::string& row : dws::golden::SizesRows()) fmt::print("{}\n", row);
  return 0;
}
