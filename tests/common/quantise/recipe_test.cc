// Recipes and the tensors that they make: ids, names, shapes, cuts, refusals.
#include "common/quantise/recipe.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/quantise/derived_tensors.h"

namespace dws::quantise {
namespace {

using Shape = std::vector<uint64_t>;

Recipe Of(std::string_view id) { return ParseRecipe(id).value(); }

TensorSpec Bf16(std::string name, Shape shape, std::vector<Cuts> cuts = {}) {
  return {.name = std::move(name),
          .dtype = DType::kBF16,
          .shape = std::move(shape),
          .cuts = std::move(cuts)};
}

std::vector<std::string> Printed(std::string_view id, const TensorSpec& canonical) {
  std::vector<std::string> lines;
  const std::vector<TensorSpec> tensors = DeriveTensors(Of(id), canonical).value();
  for (const TensorSpec& tensor : tensors) {
    lines.push_back(tensor.name + ": " + ToString(tensor));
  }
  return lines;
}

std::string Refusal(std::string_view id, const TensorSpec& canonical) {
  const auto result = DeriveTensors(Of(id), canonical);
  REQUIRE(!result.ok());
  REQUIRE(result.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(Message(result.status()));
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("each recipe is found by its id, and no other text is", "[quantise]") {
  std::set<std::string_view> ids;
  for (const Recipe& recipe : AllRecipes()) {
    REQUIRE(ParseRecipe(recipe.id).value() == recipe);
    REQUIRE(ids.insert(recipe.id).second);
    REQUIRE(recipe.Find(Role::kCodes) != nullptr);
    REQUIRE((recipe.Find(Role::kTensorScale) != nullptr) == recipe.has_tensor_scale);
  }
  REQUIRE(Message(ParseRecipe("fp8-channel").status()) ==
          "there is no quantisation recipe \"fp8-channel\"; expected one of: fp8-channel/vllm, "
          "fp8-channel/compressed-tensors");
  REQUIRE_THAT(std::string(Message(ParseRecipe("fp6").status())),
               Catch::Contains("nvfp4/modelopt") && Catch::Contains("fp8-block128/deepseek,"));
  for (const std::string_view text :
       {"", "/", "nvfp4", "nvfp4/", "nvfp4/modelopt ", "NVFP4/modelopt"}) {
    REQUIRE(!ParseRecipe(text).ok());
  }
}

TEST_CASE("outputs have the names, dtypes and shapes of checkpoints", "[quantise]") {
  const TensorSpec plain = Bf16("mlp.up_proj.weight", {300, 512});
  REQUIRE(Printed("fp8-block128/deepseek", plain) ==
          Lines{"mlp.up_proj.weight: F8_E4M3 [300, 512] uncut",
                "mlp.up_proj.weight_scale_inv: F32 [3, 4] uncut"});
  REQUIRE(Printed("fp8-channel/vllm", plain) ==
          Lines{"mlp.up_proj.weight: F8_E4M3 [300, 512] uncut",
                "mlp.up_proj.weight_scale: F32 [300, 1] uncut"});
  REQUIRE(Printed("fp8-tensor/compressed-tensors", plain) ==
          Lines{"mlp.up_proj.weight: F8_E4M3 [300, 512] uncut",
                "mlp.up_proj.weight_scale: BF16 [1] uncut"});
  REQUIRE(Printed("mxfp8/rceil", plain) == Lines{"mlp.up_proj.weight: F8_E4M3 [300, 512] uncut",
                                                 "mlp.up_proj.weight_scale: U8 [300, 16] uncut"});
  REQUIRE(Printed("int4-g128/amax7", plain) ==
          Lines{"mlp.up_proj.weight_packed: I32 [300, 64] uncut",
                "mlp.up_proj.weight_scale: BF16 [300, 4] uncut",
                "mlp.up_proj.weight_shape: I32 [2] uncut"});
  REQUIRE(Printed("nvfp4/modelopt", plain) ==
          Lines{"mlp.up_proj.weight: U8 [300, 256] uncut",
                "mlp.up_proj.weight_scale: F8_E4M3 [300, 32] uncut",
                "mlp.up_proj.weight_scale_2: F32 [] uncut"});
  REQUIRE(Printed("nvfp4/compressed-tensors", plain)[2] ==
          "mlp.up_proj.weight_global_scale: F32 [1] uncut");
}

TEST_CASE("a stack of experts has scales for each, and cuts go with it", "[quantise]") {
  const TensorSpec stack = Bf16("experts.w13_weight", {8, 200, 256}, {{0, {2, 6}}});
  REQUIRE(Printed("fp8-block128/deepseek", stack) ==
          Lines{"experts.w13_weight: F8_E4M3 [8, 200, 256] cut on dim 0 at {2, 6}",
                "experts.w13_weight_scale_inv: F32 [8, 2, 2] cut on dim 0 at {2, 6}"});
  REQUIRE(Printed("nvfp4/modelopt", stack)[2] ==
          "experts.w13_weight_scale_2: F32 [8] cut on dim 0 at {2, 6}");
  REQUIRE(Printed("int4-g32/amax7", stack)[2] ==
          "experts.w13_weight_shape: I32 [8, 2] cut on dim 0 at {2, 6}");
}

TEST_CASE("experts of gpt-oss become the blocks and scales of the transposed", "[quantise]") {
  const std::string_view id = "mxfp4-gpt-oss/modelopt";
  REQUIRE(Printed(id, Bf16("experts.gate_up_proj", {8, 96, 130}, {{0, {2, 6}}, {2, {64}}})) ==
          Lines{"experts.gate_up_proj_blocks: U8 [8, 130, 3, 16] cut on dim 0 at {2, 6}, dim 1 at "
                "{64}",
                "experts.gate_up_proj_scales: U8 [8, 130, 3] cut on dim 0 at {2, 6}, dim 1 at "
                "{64}"});
  REQUIRE(Printed(id, Bf16("experts.down_proj", {8, 96, 130}, {{1, {32, 64}}})) ==
          Lines{"experts.down_proj_blocks: U8 [8, 130, 3, 16] cut on dim 2 at {1, 2}",
                "experts.down_proj_scales: U8 [8, 130, 3] cut on dim 2 at {1, 2}"});
  const TensorSpec down = Bf16("experts.down_proj", {8, 96, 130});
  const auto asked = [&down, id](Role role, uint32_t dim, uint64_t at) {
    return CanonicalCuts(Of(id), role, down, {{dim, {at}}});
  };
  for (const Role role : {Role::kCodes, Role::kScales}) {
    REQUIRE(asked(role, 0, 3).value() == std::vector<Cuts>{{0, {3}}});
    REQUIRE(asked(role, 1, 65).value() == std::vector<Cuts>{{2, {65}}});
    REQUIRE(asked(role, 2, 2).value() == std::vector<Cuts>{{1, {64}}});
    REQUIRE(!asked(role, 2, 3).ok());
  }
  REQUIRE_THAT(
      std::string(Message(asked(Role::kCodes, 3, 8).status())),
      Catch::Contains("experts.down_proj_blocks") && Catch::Contains("whole on dimension 3"));
  REQUIRE_THAT(Refusal(id, Bf16("a.up_proj", {96, 130}, {{0, {32}}, {1, {64}}})),
               Catch::Contains("cuts of dimension 0 or of dimension 1, not of both"));
  REQUIRE_THAT(Refusal(id, Bf16("a.up_proj", {96, 130}, {{0, {48}}})),
               Catch::Contains("multiples of 32, found one at 48; use 32 or 64"));
  REQUIRE_THAT(Refusal(id, Bf16("a.up_proj", {100, 130})),
               Catch::Contains("multiple of 32 rows, found 100"));
  REQUIRE_THAT(Refusal(id, Bf16("a.weight", {96, 130})), Catch::Contains("ends in \"_proj\""));
}

TEST_CASE("cuts are carried over where they do not divide a tile", "[quantise]") {
  REQUIRE(
      Printed("fp8-block128/deepseek", Bf16("a.weight", {300, 512}, {{0, {256}}, {1, {128}}})) ==
      Lines{"a.weight: F8_E4M3 [300, 512] cut on dim 0 at {256}, dim 1 at {128}",
            "a.weight_scale_inv: F32 [3, 4] cut on dim 0 at {2}, dim 1 at {1}"});
  REQUIRE(Printed("int4-g32/amax7.5", Bf16("a.weight", {5, 512}, {{0, {3}}, {1, {32, 96}}})) ==
          Lines{"a.weight_packed: I32 [5, 64] cut on dim 0 at {3}, dim 1 at {4, 12}",
                "a.weight_scale: BF16 [5, 16] cut on dim 0 at {3}, dim 1 at {1, 3}",
                "a.weight_shape: I32 [2] uncut"});
  REQUIRE(Printed("fp8-channel/vllm", Bf16("a.weight", {5, 7}, {{0, {3}}}))[1] ==
          "a.weight_scale: F32 [5, 1] cut on dim 0 at {3}");
}

TEST_CASE("what does not fit is refused with the boundary to use", "[quantise]") {
  REQUIRE(Refusal("fp8-block128/deepseek", Bf16("a.weight", {300, 512}, {{0, {100}}})) ==
          "tensor a.weight: recipe fp8-block128/deepseek needs cuts of dimension 0 at multiples of "
          "128, found one at 100; use 0 or 128");
  REQUIRE_THAT(Refusal("fp8-block128/deepseek", Bf16("a.weight", {300, 512}, {{0, {290}}})),
               Catch::Contains("use 256 or 300"));
  REQUIRE_THAT(Refusal("mxfp8/floor", Bf16("a.weight", {4, 64}, {{1, {48}}})),
               Catch::Contains("multiples of 32, found one at 48; use 32 or 64"));
  REQUIRE_THAT(Refusal("fp8-channel/vllm", Bf16("a.weight", {4, 64}, {{1, {32}}})),
               Catch::Contains("whole of dimension 1") && Catch::Contains("cut the rows"));
  REQUIRE_THAT(
      Refusal("int4-g32/amax7", Bf16("a.weight", {4, 40})),
      Catch::Contains("tensor a.weight") && Catch::Contains("multiple of 32 columns, found 40"));
  REQUIRE_THAT(Refusal("mxfp8/floor", Bf16("norm.weight", {64})),
               Catch::Contains("two or more dimensions, found 1"));
  REQUIRE_THAT(Refusal("mxfp8/floor", Bf16("a.bias", {64, 64})),
               Catch::Contains("ends in \"weight\""));
  TensorSpec f32 = Bf16("a.weight", {64, 64});
  f32.dtype = DType::kF32;
  REQUIRE_THAT(Refusal("mxfp8/floor", f32), Catch::Contains("quantises BF16, found F32"));
}

}  // namespace dws::quantise
