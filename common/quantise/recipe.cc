// One table of ids, so that what RECIPES.md defines, what a parser accepts and what kernels compute
// cannot drift apart.
#include "common/quantise/recipe.h"

#include <iterator>
#include <string>

namespace dws::quantise {
namespace {

constexpr OutputKind kBlockOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kScales, .name = "weight_scale_inv", .dtype = DType::kF32},
};
constexpr OutputKind kChannelOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kF32},
};
constexpr OutputKind kCompressedChannelOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kBF16},
};
constexpr OutputKind kTensorOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kTensorScale, .name = "weight_scale", .dtype = DType::kF32},
};
constexpr OutputKind kCompressedTensorOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kTensorScale, .name = "weight_scale", .dtype = DType::kBF16},
};
constexpr OutputKind kMxOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kF8E4M3},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kU8},
};
constexpr OutputKind kInt4Outputs[] = {
    {.role = Role::kCodes, .name = "weight_packed", .dtype = DType::kI32},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kBF16},
    {.role = Role::kShape, .name = "weight_shape", .dtype = DType::kI32},
};
constexpr OutputKind kModeloptOutputs[] = {
    {.role = Role::kCodes, .name = "weight", .dtype = DType::kU8},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kF8E4M3},
    {.role = Role::kTensorScale, .name = "weight_scale_2", .dtype = DType::kF32},
};
constexpr OutputKind kCompressedNvfp4Outputs[] = {
    {.role = Role::kCodes, .name = "weight_packed", .dtype = DType::kU8},
    {.role = Role::kScales, .name = "weight_scale", .dtype = DType::kF8E4M3},
    {.role = Role::kTensorScale, .name = "weight_global_scale", .dtype = DType::kF32},
};

// The experts of gpt-oss: "x.gate_up_proj" becomes "x.gate_up_proj_blocks".
constexpr OutputKind kGptOssOutputs[] = {
    {.role = Role::kCodes, .name = "_proj_blocks", .dtype = DType::kU8, .replaces = "_proj"},
    {.role = Role::kScales, .name = "_proj_scales", .dtype = DType::kU8, .replaces = "_proj"},
};

constexpr Recipe Block(std::string_view id, Rule rule, uint32_t side) {
  return {
      .id = id, .rule = rule, .tile_rows = side, .tile_columns = side, .has_partial_tiles = true};
}
constexpr Recipe Channel(std::string_view id, Rule rule) {
  return {.id = id, .rule = rule, .tile_columns = Recipe::kWhole};
}
constexpr Recipe Tensor(std::string_view id, Rule rule) {
  return {.id = id, .rule = rule, .has_tensor_scale = true};
}
constexpr Recipe Group(std::string_view id, Rule rule, uint32_t size) {
  return {.id = id, .rule = rule, .tile_columns = size};
}
constexpr Recipe Nvfp4(std::string_view id, Rule rule) {
  return {.id = id, .rule = rule, .tile_columns = 16, .has_tensor_scale = true};
}
constexpr Recipe Column(std::string_view id, Rule rule, uint32_t size) {
  return {.id = id, .rule = rule, .tile_rows = size};
}

constexpr Recipe kRecipes[] = {
    Block("fp8-block128/deepseek", Rule::kDeepseek, 128),
    Block("fp8-block128/deepseek-divide", Rule::kDeepseekDivide, 128),
    Block("fp8-block128/deepseek-ue8m0", Rule::kDeepseekUe8m0, 128),
    Block("fp8-block64/deepseek", Rule::kDeepseek, 64),
    Block("fp8-block64/deepseek-divide", Rule::kDeepseekDivide, 64),
    Block("fp8-block64/deepseek-ue8m0", Rule::kDeepseekUe8m0, 64),
    Channel("fp8-channel/vllm", Rule::kVllmChannel),
    Channel("fp8-channel/compressed-tensors", Rule::kCompressedRow),
    Tensor("fp8-tensor/vllm", Rule::kVllmTensor),
    Tensor("fp8-tensor/compressed-tensors", Rule::kCompressedWhole),
    Group("mxfp8/floor", Rule::kMxFloor, 32),
    Group("mxfp8/even", Rule::kMxEven, 32),
    Group("mxfp8/compressed-tensors", Rule::kMxCompressed, 32),
    Group("mxfp8/rceil", Rule::kMxRceil, 32),
    Group("int4-g32/amax7", Rule::kInt4Amax7, 32),
    Group("int4-g32/amax7.5", Rule::kInt4Amax7_5, 32),
    Group("int4-g128/amax7", Rule::kInt4Amax7, 128),
    Group("int4-g128/amax7.5", Rule::kInt4Amax7_5, 128),
    Nvfp4("nvfp4/modelopt", Rule::kNvfp4Modelopt),
    Nvfp4("nvfp4/compressed-tensors", Rule::kNvfp4Compressed),
    Column("mxfp4-gpt-oss/triton-kernels", Rule::kMxfp4Triton, 32),
    Column("mxfp4-gpt-oss/modelopt", Rule::kMxfp4Modelopt, 32),
};

// "fp8-block128" of "fp8-block128/deepseek".
std::string_view SchemeOf(std::string_view id) { return id.substr(0, id.find('/')); }

}  // namespace

std::span<const OutputKind> Recipe::outputs() const {
  switch (rule) {
    case Rule::kDeepseek:
    case Rule::kDeepseekDivide:
    case Rule::kDeepseekUe8m0:
      return kBlockOutputs;
    case Rule::kVllmChannel:
      return kChannelOutputs;
    case Rule::kVllmTensor:
      return kTensorOutputs;
    case Rule::kCompressedRow:
      return kCompressedChannelOutputs;
    case Rule::kCompressedWhole:
      return kCompressedTensorOutputs;
    case Rule::kMxFloor:
    case Rule::kMxEven:
    case Rule::kMxCompressed:
    case Rule::kMxRceil:
      return kMxOutputs;
    case Rule::kInt4Amax7:
    case Rule::kInt4Amax7_5:
      return kInt4Outputs;
    case Rule::kNvfp4Modelopt:
      return kModeloptOutputs;
    case Rule::kNvfp4Compressed:
      return kCompressedNvfp4Outputs;
    case Rule::kMxfp4Triton:
    case Rule::kMxfp4Modelopt:
      return kGptOssOutputs;
  }
  return {};
}

const OutputKind* Recipe::Find(Role role) const {
  for (const OutputKind& output : outputs()) {
    if (output.role == role) return &output;
  }
  return nullptr;
}

std::span<const Recipe> AllRecipes() { return kRecipes; }

Result<Recipe> ParseRecipe(std::string_view id) {
  std::string near;
  std::string all;
  for (const Recipe& recipe : kRecipes) {
    if (recipe.id == id) return recipe;
    std::string& names = SchemeOf(recipe.id) == SchemeOf(id) ? near : all;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", recipe.id);
  }
  return InvalidArgumentError("there is no quantisation recipe \"{}\"; expected one of: {}", id,
                              near.empty() ? all : near);
}

}  // namespace dws::quantise
