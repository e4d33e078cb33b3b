// Writes the golden files: make_golden tests/golden/delta_v1. Run it only for new cases: files of a
// format version never change, and golden_test fails when one does.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/delta/bits/checksum.h"
#include "tests/golden/golden_cases.h"

namespace dws::golden {
namespace {

// With the names of the protocol's fields: those of layout format 1 for at most one dimension that
// is cut, those of format 2 for more.
void DescribeCells(const Shard& shard, nlohmann::json& described) {
  const std::vector<Cuts>& cuts = shard.tensor.cuts;
  if (cuts.size() < 2) {
    const CellRange cells = cuts.empty() ? CellRange{} : shard.cells[0];
    described["cut_dim"] = cuts.empty() ? 0 : cuts[0].dim;
    described["cuts"] = cuts.empty() ? std::vector<uint64_t>{} : cuts[0].at;
    described["first_slice"] = cells.first;
    described["slice_count"] = cells.count;
    return;
  }
  for (size_t c = 0; c < cuts.size(); ++c) {
    described["grid"].push_back({{"dim", cuts[c].dim}, {"at", cuts[c].at}});
    described["cells"].push_back(
        {{"first", shard.cells[c].first}, {"count", shard.cells[c].count}});
  }
}

nlohmann::json Describe(const GoldenCase& golden) {
  nlohmann::json shards = nlohmann::json::array();
  for (const Shard& shard : golden.layout.shards()) {
    nlohmann::json described = {{"name", shard.tensor.name},
                                {"dtype", ToString(shard.tensor.dtype)},
                                {"shape", shard.tensor.shape}};
    DescribeCells(shard, described);
    shards.push_back(std::move(described));
  }
  nlohmann::json after = nlohmann::json::array();
  for (const samples::Bytes& bytes : golden.after) {
    after.push_back(fmt::format("{:016x}", Checksum(bytes)));
  }
  return {{"file", golden.name + ".dws"}, {"layout", shards},
          {"seed", golden.seed},          {"compare_base", golden.compare_base},
          {"outcome", golden.outcome},    {"after_xxh3", after}};
}

int Main(const std::string& directory) {
  nlohmann::json index = nlohmann::json::array();
  for (const GoldenCase& golden : MakeGoldenCases()) {
    index.push_back(Describe(golden));
    std::ofstream file(directory + "/" + golden.name + ".dws", std::ios::binary);
    file.write(reinterpret_cast<const char*>(golden.object.data()),
               static_cast<std::streamsize>(golden.object.size()));
  }
  std::ofstream(directory + "/cases.json") << index.dump(1) << "\n";
  fmt::print("{} golden files in {}\n", index.size(), directory);
  return 0;
}

}  // namespace
}  // namespace dws::golden

int main(int argc, char** argv) {
  if (argc == 2) return dws::golden::Main(argv[1]);
  fmt::print(stderr, "usage: make_golden DIRECTORY\n");
  return 2;
}
