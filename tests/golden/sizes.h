// The exact sizes of encoded objects and their parts, for the recorded training run and for made
// states. make_sizes writes them to tests/golden/sizes.csv and sizes_test compares: the diff of
// that file shows every byte that a change of the codec costs or saves.
#pragma once

#include <string>
#include <vector>

namespace dws::golden {

// The first line of the file: the names of the columns.
std::string SizesHeader();

// "case,profile,..." of every case and profile. The same on every machine, up to the version of
// zstd (columns object, manifest, dense-zstd).
std::vector<std::string> SizesRows();

// The differences between two files' rows, one line each: rows that are gone, new or different,
// with the columns that differ. Empty when the rows are equal.
std::vector<std::string> CompareSizes(const std::vector<std::string>& expected,
                                      const std::vector<std::string>& found);

}  // namespace dws::golden
