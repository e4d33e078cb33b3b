// The estimate for a view equals the estimate for the two checkpoints quantised as a whole.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "common/base/instruction_set.h"
#include "common/quantise/quantise.h"
#include "common/quantise/view.h"
#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/estimate.h"

namespace dws::checkpoint {
namespace {

using quantise::Role;
using safetensors::FileDType;

// Weights with magnitudes 2^-13 to 2^-2: a NaN would make all codes of its tile NaN.
TestTensor RandomWeights(std::vector<uint64_t> shape, uint64_t seed) {
  TestTensor tensor = RandomTensor(FileDType::kBF16, std::move(shape), seed);
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
    const auto bits = LoadLe<uint16_t>(tensor.bytes.data() + i);
    const uint32_t exponent = 114 + (bits >> 7) % 12;
    StoreLe<uint16_t>(tensor.bytes.data() + i,
                      static_cast<uint16_t>((bits & 0x807FU) | exponent << 7));
  }
  return tensor;
}

// A tensor of many blocks that a window of blocks ends in, a stack of matrices whose tiles are
// smaller at the edges, and what no recipe quantises.
TestModel Model() {
  TestModel model;
  for (uint64_t i = 0; i < 510; ++i) {
    model["a" + std::to_string(1000 + i)] = RandomTensor(FileDType::kU8, {4}, i);
  }
  model["big.weight"] = RandomWeights({3, 200, 3072}, 1);
  model["empty.weight"] = RandomWeights({0, 64}, 1);
  model["gate.weight"] = RandomWeights({8, 100}, 2);
  model["k.weight"] = RandomWeights({64, 256}, 5);
  model["norm.weight"] = RandomWeights({640}, 3);
  model["q.weight"] = RandomWeights({128, 256}, 6);
  model["stack.weight"] = RandomWeights({2, 2, 70, 256}, 4);
  return model;
}

// Experts that a recipe transposes, beside tensors that it copies.
TestModel Experts() {
  TestModel model = Model();
  model["experts.down_proj"] = RandomWeights({2, 2, 64, 300}, 7);
  model["experts.gate_up_proj"] = RandomWeights({3, 224, 1500}, 8);
  return model;
}

// The amax of each matrix of a tensor and of those that share its scale; empty if the recipe has no
// scale of matrices.
std::vector<uint16_t> SharedAmax(const TestModel& model, const quantise::View& view,
                                 const std::string& name) {
  if (!view.recipe.has_tensor_scale) return {};
  std::vector<std::string> names = {name};
  for (const quantise::SharedParts& parts : view.shares) {
    if (std::ranges::none_of(parts, [&](const auto& part) { return name == part + ".weight"; })) {
      continue;
    }
    for (const std::string& part : parts) names.push_back(part + ".weight");
  }
  std::vector<uint16_t> result;
  for (const std::string& each : names) {
    const TestTensor& tensor = model.at(each);
    const auto grid = quantise::TileGrid::Create(view.recipe, tensor.shape);
    const auto amax = quantise::MatrixAmax(ActiveInstructionSet(), *grid, tensor.bytes);
    result.resize(amax.size());
    for (size_t i = 0; i < amax.size(); ++i) result[i] = std::max(result[i], amax[i]);
  }
  return result;
}

// The tensors that a recipe makes of each matrix of the model, made of whole tensors.
TestModel Quantised(const TestModel& model, const quantise::View& view) {
  TestModel result;
  for (const auto& [name, tensor] : model) {
    const auto dtype = safetensors::ModelDType(tensor.dtype);
    const TensorSpec spec{.name = name, .dtype = *dtype, .shape = tensor.shape};
    if (!view.Quantises(spec)) {
      result[name] = tensor;
      continue;
    }
    const auto grid = quantise::TileGrid::Create(view.recipe, tensor.shape);
    const auto derived = quantise::DeriveTensors(view.recipe, spec);
    REQUIRE((grid.ok() && derived.ok()));
    std::map<Role, std::vector<std::byte>> bytes;
    bytes[Role::kCodes].resize(grid->codes_bytes());
    bytes[Role::kScales].resize(grid->scales_bytes());
    const std::vector<quantise::TileRun> all = {grid->All()};
    const std::vector<uint16_t> amax = SharedAmax(model, view, name);
    quantise::Quantise(ActiveInstructionSet(), *grid, tensor.bytes, amax, all,
                       {.codes = bytes[Role::kCodes], .scales = bytes[Role::kScales]});
    bytes[Role::kShape].resize(grid->shape().matrices * 8);
    quantise::WriteShapes(grid->shape(), bytes[Role::kShape]);
    for (size_t i = 0; i < derived->size(); ++i) {
      const TensorSpec& made = (*derived)[i];
      const Role role = view.recipe.outputs()[i].role;
      if (role == Role::kTensorScale) {
        bytes[role].resize(amax.size() * ElementBytes(made.dtype));
        quantise::WriteTensorScales(view.recipe, amax, bytes[role]);
      }
      result[made.name] = {
          .dtype = safetensors::FileDTypeOf(made.dtype), .shape = made.shape, .bytes = bytes[role]};
    }
  }
  return result;
}

struct Pair {
  explicit Pair(const TestModel& from) : a(from), b(from) {
    Train(b, 300, 5);
    WriteFolder(a, scene.A(), 1'000'000);
    WriteFolder(b, scene.B(), 1'000'000);
  }
  Result<Estimate> Of(const std::string& before, const std::string& after,
                      std::vector<std::string> views) {
    DWS_ASSIGN_OR_RETURN(const Checkpoint from, Checkpoint::Open(before));
    DWS_ASSIGN_OR_RETURN(const Checkpoint to, Checkpoint::Open(after));
    return EstimateSync(from, to, {.slime = false, .views = std::move(views)}, scene.pool,
                        NoProgress);
  }

  Scene scene;
  TestModel a;
  TestModel b;
};

uint64_t DifferingElements(const TestTensor& a, const TestTensor& b, uint64_t bits) {
  uint64_t count = 0;
  if (bits == 4) {
    for (size_t i = 0; i < a.bytes.size(); ++i) {
      const std::byte differ = a.bytes[i] ^ b.bytes[i];
      count += (differ & std::byte{0x0F}) != std::byte{0} ? 1 : 0;
      count += (differ & std::byte{0xF0}) != std::byte{0} ? 1 : 0;
    }
    return count;
  }
  const size_t size = bits / 8;
  for (size_t i = 0; i < a.bytes.size(); i += size) {
    const auto at = static_cast<ptrdiff_t>(i);
    const auto end = static_cast<ptrdiff_t>(i + size);
    count += std::equal(a.bytes.begin() + at, a.bytes.begin() + end, b.bytes.begin() + at) ? 0 : 1;
  }
  return count;
}

// Objects of layouts with other signatures, which are compressed with their manifests.
bool AsLarge(uint64_t a, uint64_t b) { return std::max(a, b) - std::min(a, b) <= 4; }

}  // namespace

TEST_CASE("a view is estimated as the checkpoints that its recipe makes", "[checkpoint]") {
  const std::string name =
      GENERATE("fp8-block128/deepseek,except=gate.*", "fp8-block64/deepseek-ue8m0,except=gate.*",
               "fp8-channel/compressed-tensors,except=gate.*", "mxfp8/floor,except=gate.*",
               "int4-g32/amax7,except=gate.*", "int4-g128/amax7.5,except=gate.*",
               "nvfp4/modelopt,except=gate.*", "nvfp4/compressed-tensors,except=gate.*,share=q+k",
               "fp8-tensor/vllm,except=gate.*,share=q+k", "mxfp4-gpt-oss/modelopt");
  CAPTURE(name);
  const auto view = quantise::ParseView(name);
  const bool transposes = view->recipe.is_transposed();
  Pair pair(transposes ? Experts() : Model());
  const auto estimate = pair.Of(pair.scene.A(), pair.scene.B(), {name});
  REQUIRE(estimate.ok());
  REQUIRE(estimate->views.size() == 1);
  const ViewEstimate& of = estimate->views[0];
  CHECK(of.name == name);

  const TestModel a = Quantised(pair.a, *view);
  const TestModel b = Quantised(pair.b, *view);
  WriteFolder(a, pair.scene.folder.File("QA"), 1'000'000);
  WriteFolder(b, pair.scene.folder.File("QB"), 1'000'000);
  const auto made = pair.Of(pair.scene.folder.File("QA"), pair.scene.folder.File("QB"), {});
  REQUIRE(made.ok());
  CHECK(of.tensors == made->tensors);
  CHECK(of.full_bytes == made->full_bytes);
  CHECK(AsLarge(of.fast_bytes, made->fast_bytes));
  // Codes are coded alike, other tensors are not.
  if (!transposes) CHECK(AsLarge(of.wan_bytes, of.fast_bytes));
  std::vector<std::string> quantised = {"big.weight", "k.weight", "q.weight", "stack.weight"};
  if (transposes) quantised = {"experts.down_proj", "experts.gate_up_proj"};
  CHECK(of.quantised == quantised.size());

  uint64_t codes = 0;
  uint64_t changed_codes = 0;
  std::map<Role, uint64_t> changed;
  const uint64_t bits = view->recipe.codes() == quantise::Codes::kE4m3 ? 8 : 4;
  for (const std::string& tensor : quantised) {
    const std::string code = NameOf(*view->recipe.Find(Role::kCodes), tensor);
    codes += a.at(code).bytes.size() * 8 / bits;
    changed_codes += DifferingElements(a.at(code), b.at(code), bits);
    for (const Role role : {Role::kScales, Role::kTensorScale}) {
      const quantise::OutputKind* const scales = view->recipe.Find(role);
      if (scales == nullptr) continue;
      const std::string scale = NameOf(*scales, tensor);
      changed[role] += DifferingElements(a.at(scale), b.at(scale), ElementBytes(scales->dtype) * 8);
    }
  }
  CHECK(of.codes == codes);
  CHECK(of.changed_codes == changed_codes);
  CHECK(of.changed_scales == changed[Role::kScales]);
  CHECK(of.changed_matrix_scales == changed[Role::kTensorScale]);
  CHECK(of.matrix_scales == (view->recipe.has_tensor_scale ? 3 + 1 + 1 + 4 : 0));
  CHECK(changed_codes > 0);
}

TEST_CASE("several views are estimated in the order in which they are asked for", "[checkpoint]") {
  Pair pair(Model());
  const std::vector<std::string> names = {"mxfp8/even,except=gate.*", "fp8-channel/vllm",
                                          "mxfp8/even,except=*"};
  const auto estimate = pair.Of(pair.scene.A(), pair.scene.B(), names);
  REQUIRE(estimate.ok());
  REQUIRE(estimate->views.size() == 3);
  for (size_t i = 0; i < names.size(); ++i) CHECK(estimate->views[i].name == names[i]);
  CHECK(estimate->views[1].quantised == 5);
  // If nothing is quantised, the view equals the trainer's tensors.
  CHECK(estimate->views[2].quantised == 0);
  CHECK(estimate->views[2].codes == 0);
  CHECK(AsLarge(estimate->views[2].fast_bytes, estimate->fast_bytes));
  CHECK(AsLarge(estimate->views[2].wan_bytes, estimate->wan_bytes));
  CHECK(estimate->views[2].full_bytes == estimate->full_bytes);
}

TEST_CASE("a view that cannot be is refused by name before anything is encoded", "[checkpoint]") {
  Pair pair(Model());
  const auto refused = [&](const std::string& name) {
    const auto estimate = pair.Of(pair.scene.A(), pair.scene.B(), {name});
    REQUIRE(absl::IsInvalidArgument(estimate.status()));
    return std::string(Message(estimate.status()));
  };
  CHECK_THAT(refused("mxfp8"),
             Catch::Contains("no quantisation recipe") && Catch::Contains("mxfp8/floor"));
  CHECK_THAT(refused("int4-g32/amax7"), Catch::Contains("tensor gate.weight") &&
                                            Catch::Contains("found 100") &&
                                            Catch::Contains("except="));
}

}  // namespace dws::checkpoint
