#include "common/quantise/view.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/model/identity_limits.h"

namespace dws::quantise {
namespace {

using Catch::Matchers::Contains;

RankLayout LayoutOf(std::vector<Shard> shards) {
  auto layout = RankLayout::Create(std::move(shards));
  REQUIRE(layout.ok());
  return *std::move(layout);
}

TensorSpec Matrix(const std::string& name, std::vector<uint64_t> shape,
                  std::vector<Cuts> cuts = {}) {
  return {.name = name, .dtype = DType::kBF16, .shape = std::move(shape), .cuts = std::move(cuts)};
}

std::string Why(const std::string& name) {
  const auto view = ParseView(name);
  return view.ok() ? "" : std::string(Message(view.status()));
}

}  // namespace

TEST_CASE("a view's name is a recipe and what it leaves out", "[quantise]") {
  const auto view = ParseView("mxfp8/floor,except=lm_head.weight,except=*.gate.*");
  REQUIRE(view.ok());
  CHECK(view->recipe.id == "mxfp8/floor");
  CHECK(view->except == std::vector<std::string>{"lm_head.weight", "*.gate.*"});
  CHECK_THAT(Why("mxfp8"), Contains("mxfp8/floor"));
  CHECK_THAT(Why(""), Contains("recipe"));
  CHECK(Why("mxfp8/floor,").empty());
  CHECK_THAT(Why("mxfp8/floor,exempt=a"),
             Contains("expected 'except=PATTERN'") && Contains("exempt=a"));
  CHECK_THAT(Why("mxfp8/floor,except="), Contains("found 'except='"));
  CHECK_THAT(Why("mxfp8/floor,except=" + std::string(limits::kViewNameBytesMax, 'a')),
             Contains("at most 4096"));
  CHECK_THAT(Why("mxfp8/floor,except=a\xFF"
                 "b"),
             Contains("except=a\\xffb'") && Contains("cannot be printed"));
}

TEST_CASE("patterns are of whole names", "[quantise]") {
  const auto view = ParseView("mxfp8/floor,except=a*c.weight,except=*.x.*weight,except=b.weight");
  REQUIRE(view.ok());
  const auto leaves = [&](const std::string& name) {
    return !view->Quantises(Matrix(name, {32, 32}));
  };
  CHECK(leaves("ac.weight"));
  CHECK(leaves("abcbc.weight"));
  CHECK_FALSE(leaves("abcb.weight"));
  CHECK(leaves("m.x.weight"));
  CHECK(leaves("m.x.y.weight"));
  CHECK_FALSE(leaves("m.xy.weight"));
  CHECK(leaves("b.weight"));
  CHECK_FALSE(leaves("b.weight.weight"));
}

TEST_CASE("a recipe quantises matrices of BF16 that are named weight", "[quantise]") {
  const auto view = ParseView("mxfp8/floor");
  REQUIRE(view.ok());
  CHECK(view->Quantises(Matrix("a.weight", {2, 32})));
  CHECK(view->Quantises(Matrix("w13_weight", {2, 2, 32})));
  CHECK_FALSE(view->Quantises(Matrix("a.bias", {2, 32})));
  CHECK_FALSE(view->Quantises(Matrix("norm.weight", {32})));
  CHECK_FALSE(view->Quantises(Matrix("a.weight", {0, 32})));
  TensorSpec wide = Matrix("a.weight", {2, 32});
  wide.dtype = DType::kF32;
  CHECK_FALSE(view->Quantises(wide));
}

TEST_CASE("a view's layout has the tensors that recipes make and the others as they are",
          "[quantise]") {
  const TensorSpec cut = Matrix("b.weight", {300, 64}, {{.dim = 0, .at = {128, 256}}});
  const RankLayout trainer = LayoutOf({Shard::Whole(Matrix("a.weight", {64})),
                                       {.tensor = cut, .cells = {{.first = 1, .count = 2}}},
                                       Shard::Whole(Matrix("c.weight", {4, 96}))});
  const auto view = ViewLayout::Create("fp8-block128/deepseek,except=c.*", trainer);
  REQUIRE(view.ok());
  const RankLayout& layout = view->layout();
  CHECK(layout.view() == "fp8-block128/deepseek,except=c.*");
  REQUIRE(layout.shards().size() == 4);
  CHECK(layout.shards()[0].tensor == trainer.shards()[0].tensor);
  CHECK(layout.shards()[1].tensor.dtype == DType::kF8E4M3);
  CHECK(layout.shards()[1].tensor.shape == cut.shape);
  CHECK(layout.shards()[1].cells == trainer.shards()[1].cells);
  CHECK(layout.shards()[2].tensor.name == "b.weight_scale_inv");
  CHECK(layout.shards()[2].tensor.shape == std::vector<uint64_t>{3, 1});
  CHECK(layout.shards()[2].tensor.cuts == std::vector<Cuts>{{.dim = 0, .at = {1, 2}}});
  REQUIRE(view->slices().size() == 4);
  CHECK_FALSE(view->slices()[0].grid.has_value());
  CHECK(view->slices()[1].grid->tile_count() == 1);
  CHECK(layout.slice(view->slices()[2].codes).slice == 2);
  CHECK(layout.slice(*view->slices()[2].scales).slice == 2);
  CHECK(view->constants().empty());

  // Another name is another layout, whatever its tensors are.
  const auto other = ViewLayout::Create("fp8-block128/deepseek-divide,except=c.*", trainer);
  REQUIRE(other.ok());
  CHECK(other->layout().shards() == layout.shards());
  CHECK(other->layout().signature() != layout.signature());
  CHECK(layout.signature() != trainer.signature());
}

TEST_CASE("the shape of int4 belongs to the rank that has the first rows", "[quantise]") {
  const TensorSpec tensor = Matrix("a.weight", {4, 64}, {{.dim = 0, .at = {2}}});
  for (const uint32_t first : {0, 1}) {
    const RankLayout trainer =
        LayoutOf({{.tensor = tensor, .cells = {{.first = first, .count = 1}}}});
    const auto view = ViewLayout::Create("int4-g32/amax7", trainer);
    REQUIRE(view.ok());
    CHECK(view->layout().shards().size() == (first == 0 ? 3 : 2));
    REQUIRE(view->constants().size() == (first == 0 ? 1 : 0));
    if (first == 0) CHECK(view->constants()[0].shape.rows == 4);
  }
}

TEST_CASE("what cannot be a view is refused with the reason", "[quantise]") {
  const auto why = [](const std::string& name, const TensorSpec& tensor) {
    const auto view = ViewLayout::Create(name, LayoutOf({Shard::Whole(tensor)}));
    return view.ok() ? std::string() : std::string(Message(view.status()));
  };
  CHECK_THAT(why("fp8-block128/deepseek", Matrix("a.weight", {300, 64}, {{.dim = 0, .at = {100}}})),
             Contains("a.weight") && Contains("multiples of 128"));
  CHECK_THAT(why("mxfp8/floor", Matrix("a.weight", {2, 33})), Contains("multiple of 32 columns"));
  const auto lone = [&](const std::string& name) {
    return why(name, Matrix("l.gate_proj.weight", {2, 32}));
  };
  CHECK_THAT(lone("nvfp4/modelopt,share=gate_proj+up_proj"), Contains("l.gate_proj.weight") &&
                                                                 Contains("l.up_proj.weight") &&
                                                                 Contains("does not have"));
  CHECK_THAT(lone("mxfp8/floor,share=gate_proj+up_proj"), Contains("one scale a matrix"));
  for (const char* parts : {"", "a", "a+", "a+a", "+a", "a+b.c"}) {
    CHECK_THAT(lone(std::string("nvfp4/modelopt,share=") + parts), Contains("'share=PART+PART'"));
  }
  CHECK_THAT(lone("nvfp4/modelopt,share=gate_proj+up_proj,share=gate_proj+k"), Contains("l."));
  std::string many = "nvfp4/modelopt";
  for (int i = 0; i < 17; ++i) many += ",share=a+b";
  CHECK_THAT(lone(many), Contains("more than 16"));
  CHECK_THAT(lone("nvfp4/modelopt,share=a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q"),
             Contains("'share=PART+PART'"));
}

TEST_CASE("matrices of one scale say which parts other ranks have", "[quantise]") {
  // A stack cut along the stack, rows and columns; the rank has half the rows of one stack.
  const std::vector<Cuts> cuts = {{.dim = 0, .at = {1}}, {.dim = 1, .at = {32}}, {2, {16, 48}}};
  const Shard part{.tensor = Matrix("a.up.weight", {3, 64, 64}, cuts),
                   .cells = {{1, 1}, {1, 1}, {0, 3}}};
  const Shard other{.tensor = Matrix("a.gate.weight", {3, 16, 64}, {{.dim = 0, .at = {1}}}),
                    .cells = {{1, 1}}};
  const RankLayout trainer = LayoutOf({other, part, Shard::Whole(Matrix("b.weight", {32, 32}))});
  const auto view = ViewLayout::Create("nvfp4/modelopt,share=gate+up", trainer);
  REQUIRE(view.ok());
  REQUIRE(view->matrices().size() == 2);
  CHECK(view->matrices()[0].count == 2);
  CHECK(view->matrices()[0].slices.size() == 4);
  CHECK(view->matrices()[0].parts == 7);
  CHECK(view->matrices()[0].IsDivided());
  CHECK_FALSE(view->matrices()[1].IsDivided());
  CHECK(view->DividedTensor(trainer) == "a.gate.weight");
  CHECK(view->unused_shares().empty());
  REQUIRE(view->matrix_tensors().size() == 3);
  const ViewLayout::MatrixTensor& up = view->matrix_tensors()[1];
  CHECK(up.parts == 6);
  CHECK(up.first == 1);
  CHECK(up.matrices == std::map<uint32_t, size_t>{{1, 0}});
  // The scale of up belongs to the rank with the first rows.
  CHECK(view->matrices()[0].scales.size() == 1);
  CHECK(view->layout().tensor(view->matrices()[0].scales[0]).name == "a.gate.weight_scale_2");
  // Ranks that cut it alike name it alike, whichever part they have.
  const Shard rest{.tensor = part.tensor, .cells = {{0, 2}, {0, 1}, {0, 3}}};
  const auto theirs = ViewLayout::Create("nvfp4/modelopt", LayoutOf({rest}));
  CHECK(theirs->matrix_tensors()[0].spec == up.spec);
  CHECK(theirs->matrices().size() == 2);
}

TEST_CASE("tensors that are not quantised share no scale", "[quantise]") {
  const RankLayout trainer = LayoutOf({{.tensor = Matrix("l.gate_proj.weight", {16, 32})},
                                       {.tensor = Matrix("l.up_proj.weight", {16, 32})},
                                       {.tensor = Matrix("v.up_proj.weight", {16, 32})}});
  const std::string shared = "nvfp4/modelopt,share=gate_proj+up_proj,except=v.*";
  CHECK(ViewLayout::Create(shared, trainer).value().matrices().size() == 1);
  const auto unused = ViewLayout::Create(shared + ",share=Gate_proj+up", trainer);
  CHECK(unused.value().unused_shares() == std::vector<std::string>{"Gate_proj+up"});
  const auto refused = ViewLayout::Create(shared + ",except=l.up_proj.*", trainer);
  CHECK_THAT(std::string(Message(refused.status())), Contains("l.gate_proj.weight") &&
                                                         Contains("l.up_proj.weight") &&
                                                         Contains("leaves out"));
}

TEST_CASE("tensors that share a scale are found by their names", "[quantise]") {
  const RankLayout trainer =
      LayoutOf({{.tensor = Matrix("l.0.k_proj.weight", {16, 32})},
                {.tensor = Matrix("l.0.o_proj.weight", {32, 32})},
                {.tensor = Matrix("l.0.q_proj.weight", {32, 32}, {{.dim = 0, .at = {16}}}),
                 .cells = {{0, 2}}},
                {.tensor = Matrix("l.1.k_proj.weight", {16, 32})},
                {.tensor = Matrix("l.1.q_proj.weight", {32, 32})}});
  const auto view = ViewLayout::Create("nvfp4/modelopt,share=q_proj+k_proj", trainer);
  REQUIRE(view.ok());
  std::vector<std::vector<std::string>> found;
  for (const ViewLayout::Matrices& matrices : view->matrices()) {
    std::vector<std::string>& names = found.emplace_back();
    for (const size_t s : matrices.slices) {
      names.push_back(trainer.tensor(view->slices()[s].from).name);
    }
    for (const RankSlice scales : matrices.scales) {
      names.push_back(view->layout().tensor(scales).name);
    }
  }
  const std::vector<std::vector<std::string>> expected = {
      {"l.0.k_proj.weight", "l.0.q_proj.weight", "l.0.q_proj.weight", "l.0.k_proj.weight_scale_2",
       "l.0.q_proj.weight_scale_2"},
      {"l.0.o_proj.weight", "l.0.o_proj.weight_scale_2"},
      {"l.1.k_proj.weight", "l.1.q_proj.weight", "l.1.k_proj.weight_scale_2",
       "l.1.q_proj.weight_scale_2"}};
  CHECK(found == expected);
}

TEST_CASE("cuts of a view's tensors lead to cuts of the trainer's", "[quantise]") {
  const RankLayout trainer = LayoutOf({{.tensor = Matrix("e.weight", {4, 512, 384})},
                                       {.tensor = Matrix("gate.weight", {64, 64})},
                                       {.tensor = Matrix("o.weight", {256, 512})}});
  const auto cuts = [&](const std::string& view, const CutWishes& wishes) {
    return TrainerCuts(ParseView(view).value(), trainer, wishes);
  };
  const CutWishes squares = {{"e.weight", {{.dim = 0, .at = {2}}}},
                             {"e.weight_scale_inv", {{.dim = 1, .at = {1, 3}}}},
                             {"gate.weight", {{.dim = 1, .at = {7}}}},
                             {"o.weight_scale_inv", {{.dim = 1, .at = {2}}}},
                             {"of.another.rank", {{.dim = 0, .at = {1}}}}};
  const CutWishes expected = {{"e.weight", {{.dim = 0, .at = {2}}, {.dim = 1, .at = {128, 384}}}},
                              {"gate.weight", {{.dim = 1, .at = {7}}}},
                              {"o.weight", {{.dim = 1, .at = {256}}}}};
  CHECK((cuts("fp8-block128/deepseek,except=gate.*", squares).value() == expected));
  // What is asked for is then there.
  const RankLayout finer = Refined(trainer, expected).value();
  const auto view = ViewLayout::Create("fp8-block128/deepseek,except=gate.*", finer);
  CHECK(Lacking(view.value().layout(), squares).empty());

  const CutWishes packed = {{"e.weight_shape", {{.dim = 0, .at = {1}}}},
                            {"o.weight_packed", {{.dim = 0, .at = {3}}, {.dim = 1, .at = {16}}}},
                            {"o.weight_scale", {{.dim = 1, .at = {3}}}}};
  const CutWishes groups = {{"e.weight", {{.dim = 0, .at = {1}}}},
                            {"o.weight", {{.dim = 0, .at = {3}}, {.dim = 1, .at = {128, 384}}}}};
  CHECK((cuts("int4-g128/amax7", packed).value() == groups));

  const auto why = [&](const std::string& name, const CutWishes& wishes) {
    const auto refused = cuts(name, wishes);
    CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(Message(refused.status()));
  };
  CHECK_THAT(why("fp8-channel/vllm", {{"o.weight_scale", {{.dim = 1, .at = {1}}}}}),
             Contains("o.weight_scale") && Contains("whole on dimension 1"));
  CHECK_THAT(why("int4-g32/amax7", {{"e.weight_shape", {{.dim = 1, .at = {1}}}}}),
             Contains("e.weight_shape"));
  CHECK_THAT(why("mxfp8/floor", {{"o.weight_scale", {{.dim = 1, .at = {uint64_t{1} << 60}}}}}),
             Contains("inside dimension 1, which has 16 indices"));
  CHECK_THAT(why("mxfp8/floor", {{"o.weight_scale", {{.dim = 9, .at = {1}}}}}),
             Contains("dimension 9"));
}

}  // namespace dws::quantise
