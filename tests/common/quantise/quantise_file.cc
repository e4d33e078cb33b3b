// Quantises a file of BF16 elements, for the tests that compare with other programs:
//
//   quantise_file RECIPE INSTRUCTION_SET MATRICES ROWS COLUMNS INPUT OUTPUT_STEM
//
// writes OUTPUT_STEM.codes, .scales and .tensor_scale, as far as the recipe has them. "list" alone
// prints all recipes.
#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

#include "common/quantise/quantise.h"

namespace dws::quantise {
namespace {

Result<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgumentError("{}: expected a number", text);
  }
  return value;
}

Result<InstructionSet> SetOf(std::string_view name) {
  for (const InstructionSet set :
       {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (ToString(set) == name && set <= MachineInstructionSet()) return set;
  }
  return InvalidArgumentError("{}: this machine has no such instruction set", name);
}

Status Write(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? OkStatus() : UnavailableError("{}: cannot be written", path);
}

Status Run(const std::vector<std::string>& args) {
  DWS_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(args[0]));
  DWS_ASSIGN_OR_RETURN(const InstructionSet set, SetOf(args[1]));
  DWS_ASSIGN_OR_RETURN(const uint64_t matrices, Number(args[2]));
  DWS_ASSIGN_OR_RETURN(const uint64_t rows, Number(args[3]));
  DWS_ASSIGN_OR_RETURN(const uint64_t columns, Number(args[4]));
  DWS_ASSIGN_OR_RETURN(const TileGrid grid, TileGrid::Create(recipe, {matrices, rows, columns}));
  std::ifstream input(args[5], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(input), {}};
  if (text.size() != grid.shape().elements() * 2) {
    return InvalidArgumentError("{}: {} bytes, expected {}", args[5], text.size(),
                                grid.shape().elements() * 2);
  }
  std::vector<uint16_t> amax;
  if (recipe.has_tensor_scale) {
    amax = MatrixAmax(set, grid, AsBytes(text));
    std::vector<std::byte> scales(amax.size() *
                                  ElementBytes(recipe.Find(Role::kTensorScale)->dtype));
    WriteTensorScales(recipe, amax, scales);
    DWS_RETURN_IF_ERROR(Write(args[6] + ".tensor_scale", scales));
  }
  std::vector<std::byte> codes(grid.codes_bytes());
  std::vector<std::byte> scales(grid.scales_bytes());
  const TileRun all[] = {grid.All()};
  Quantise(set, grid, AsBytes(text), amax, all, {.codes = codes, .scales = scales});
  DWS_RETURN_IF_ERROR(Write(args[6] + ".codes", codes));
  return scales.empty() ? OkStatus() : Write(args[6] + ".scales", scales);
}

int Main(const std::vector<std::string>& args) {
  if (args.size() == 1 && args[0] == "list") {
    for (const Recipe& recipe : AllRecipes()) fmt::print("{}\n", recipe.id);
    return 0;
  }
  const Status status = args.size() == 7 ? Run(args) : InvalidArgumentError("expected 7 arguments");
  if (!status.ok()) fmt::print(stderr, "quantise_file: {}\n", Message(status));
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace dws::quantise

int main(int argc, char** argv) {
  return dws::quantise::Main(std::vector<std::string>(argv + 1, argv + argc));
}
