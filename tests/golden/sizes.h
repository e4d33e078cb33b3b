// The exact size of encoded objects, whole and by part: of the recorded training run and of made
// ones. make_sizes writes them to tests/golden/sizes.csv, sizes_test compares: a change of the
// codec that costs or saves a byte shows in the diff of that file.
#pragma once

#include <string>
#include <vector>

namespace dws::golden {

// The first line of the file: what the numbers of a row are.
std::string SizesHeader();

// "case,profile,..." of every case and profile. The same on every machine, up to the version of
// zstd (columns object, manifest, dense-zstd).
std::vector<std::string> SizesRows();

// What differs between two files' rows, a line each: rows that are gone, new or different, with the
// columns that differ. Empty when nothing does.
std::vector<std::string> CompareSizes(const std::vector<std::string>& expected,
                                      const std::vector<std::string>& found);

}  // namespace dws::golden
