#include "sender_daemon/on_demand/gather/unit_plan.h"

#include <catch2/catch.hpp>

#include "tests/sender_daemon/on_demand/owners.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

std::vector<std::shared_ptr<const RankLayout>> Shared(const std::vector<RankLayout>& layouts) {
  std::vector<std::shared_ptr<const RankLayout>> shared;
  for (const RankLayout& layout : layouts) {
    shared.push_back(std::make_shared<const RankLayout>(layout));
  }
  return shared;
}

Shard Rows(const std::string& name, std::vector<uint64_t> at, CellRange cells,
           DType dtype = DType::kBF16, std::vector<uint64_t> shape = {10, 6}) {
  return {.tensor = {.name = name, .dtype = dtype, .shape = std::move(shape), .cuts = {{0, at}}},
          .cells = {cells}};
}

std::string Refusal(const std::vector<RankLayout>& layouts, std::vector<std::string> tensors) {
  const auto plan = UnitPlan::Make({.name = "u", .tensors = std::move(tensors)}, Shared(layouts));
  REQUIRE(absl::IsInvalidArgument(plan.status()));
  CHECK_THAT(ToString(plan.status()), Contains("unit 'u'"));
  return ToString(plan.status());
}

}  // namespace

TEST_CASE("every byte of a unit comes from its owner, whatever the shards", "[on_demand]") {
  const auto seed = GENERATE(take(60, random(0U, ~0U)));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto ranks = static_cast<uint32_t>(1 + seed % 8);
  const ShardedModel model = ShardedModel::Random(random, ranks);
  const auto whole = model.RandomTensors(random);
  UnitSpec unit{.name = "u", .tensors = {}};
  for (const TensorSpec& spec : model.tensors) unit.tensors.push_back(spec.name);
  std::shuffle(unit.tensors.begin(), unit.tensors.end(), random);
  const auto plan = UnitPlan::Make(unit, Shared(model.layouts));
  REQUIRE(plan.ok());

  std::vector<std::byte> buffer(plan->size_bytes());
  uint64_t bytes = 0;
  for (const UnitPlan::Part& part : plan->parts()) {
    const Weights shares = model.Shares(part.owner.value(), whole);
    uint64_t of_part = 0;
    for (size_t i = 0; i < part.slices.size(); ++i) {
      const auto& slice = shares[part.slices[i].value()];
      const PlacedMemory::Place& place = part.places[i];
      for (size_t at = 0; at < slice.size(); ++at) {
        buffer.at(place.first_byte + at / place.run_bytes * place.stride_bytes +
                  at % place.run_bytes) = slice[at];
      }
      of_part += slice.size();
    }
    CHECK(of_part == part.size_bytes);
    bytes += of_part;
  }
  uint64_t end = 0;
  for (size_t t = 0; t < unit.tensors.size(); ++t) {
    const UnitPlan::Tensor& tensor = plan->tensors()[t];
    CHECK(tensor.name == unit.tensors[t]);
    CHECK(tensor.first_byte == CeilDiv(end, 64) * 64);
    end = tensor.first_byte + tensor.size_bytes;
    bytes -= tensor.size_bytes;
    const auto found = std::ranges::find(model.tensors, tensor.name, &TensorSpec::name);
    const ByteSpan got = ByteSpan(buffer).subspan(tensor.first_byte, tensor.size_bytes);
    CHECK(std::ranges::equal(got, whole[static_cast<size_t>(found - model.tensors.begin())]));
  }
  CHECK(bytes == 0);
  CHECK(plan->size_bytes() == CeilDiv(end, 64) * 64);
}

TEST_CASE("ranks may cut a tensor in different places, as long as they share it exactly",
          "[on_demand]") {
  const auto plan = UnitPlan::Make(
      {.name = "u", .tensors = {"w"}},
      Shared({MakeLayout({Rows("w", {4}, {0, 1})}), MakeLayout({Rows("w", {2, 4, 7}, {2, 2})})}));
  REQUIRE(plan.ok());
  REQUIRE(plan->parts().size() == 2);
  CHECK(plan->parts()[0].slices.size() == 1);
  CHECK(plan->parts()[1].slices.size() == 2);
  CHECK(plan->parts()[1].places[1].first_byte == 7 * 6 * 2);
}

TEST_CASE("a plan refuses by name what owners do not share exactly", "[on_demand]") {
  const RankLayout first = MakeLayout({Rows("w", {4}, {0, 1})});
  CHECK_THAT(Refusal({first, MakeLayout({Rows("v", {4}, {1, 1})})}, {"w"}),
             Contains("36 of 60 elements of tensor 'w' have no owner"));
  CHECK_THAT(Refusal({first, MakeLayout({Rows("w", {3}, {1, 1})})}, {"w"}),
             Contains("trainer ranks 0 and 1 own the same elements of tensor 'w'"));
  CHECK_THAT(Refusal({first, MakeLayout({Rows("w", {4}, {1, 1}, DType::kF32)})}, {"w"}),
             Contains("tensor 'w' is BF16 [10, 6] of trainer rank 0, and F32 [10, 6] of trainer "
                      "rank 1"));
  CHECK_THAT(Refusal({first, MakeLayout({Rows("w", {4}, {1, 1}, DType::kBF16, {11, 6})})}, {"w"}),
             Contains("tensor 'w' is BF16 [10, 6] of trainer rank 0, and BF16 [11, 6]"));
  CHECK_THAT(Refusal({first}, {"x"}), Contains("no trainer rank has tensor 'x'"));
  CHECK_THAT(Refusal({MakeLayout({Rows("w", {4}, {0, 2})})}, {"w", "w"}),
             Contains("names tensor 'w' twice"));
  const Shard inner{.tensor = {.name = "w",
                               .dtype = DType::kBF16,
                               .shape = {4, 6, 5},
                               .cuts = {{1, {3}}, {2, {2}}}},
                    .cells = {{0, 2}, {0, 2}}};
  CHECK_THAT(Refusal({MakeLayout({inner})}, {"w"}),
             Contains("slice 0 of tensor 'w' of trainer rank 0") && Contains("one stride"));
  CHECK_THAT(Refusal(std::vector<RankLayout>(257, first), {"w"}), Contains("at most 256"));
}

}  // namespace dws
