// Sizes of parallelism are parsed strictly, and a plan is shown in three ways with the same figures.
#include "tools/dwsctl/plan/plan_view.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace dws::dwsctl {
namespace {

PlanView MakeView() {
  PolicyPlan plan{.regions = 3};
  plan.traffic = {.sent = {1024, 3072}, .received = {4096}, .pairs = {1024, 3072}};
  return {.model = "qwen3-8b",
          .parameters = 8'190'735'360,
          .model_bytes = 16'381'470'720,
          .trainer = "dp=2",
          .engine = "tp=1",
          .nic = {.text = "1KiB/s", .bytes_per_second = 1024},
          .plans = {plan}};
}

}  // namespace

TEST_CASE("sizes of parallelism are parsed, each once and in range", "[dwsctl]") {
  const auto sizes = ParseSizes("--trainer", "tp=8,pp=4,ep=32,dp=2,etp=3");
  REQUIRE(sizes.ok());
  REQUIRE((sizes->tp == 8 && sizes->pp == 4 && sizes->ep == 32 && sizes->dp == 2 &&
           sizes->etp == 3 && sizes->fsdp == 0));
  REQUIRE(ParseSizes("--trainer", "fsdp=16")->RankCount() == 16);
  for (const char* wrong : {"tp", "tp=", "tp=0", "tp=-1", "tp=5000", "tp=2x", "cp=2", "tp=2,tp=2",
                            ",tp=2", "tp=99999999999", "fsdp=2,tp=2"}) {
    const Status status = ParseSizes("--trainer", wrong).status();
    INFO(wrong << ": " << status.ToString());
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    REQUIRE(Message(status).starts_with("--trainer"));
  }
}

TEST_CASE("a plan is shown as a table, as JSON and as a picture", "[dwsctl]") {
  const PlanView view = MakeView();
  const std::string text = FormatPlan(view);
  INFO(text);
  REQUIRE(text.find("qwen3-8b: 8.19 billion parameters, 15.3 GiB") == 0);
  REQUIRE(text.find("shares  sent      1.0 KiB  3.0 KiB  3.0 KiB     1.500") != std::string::npos);
  REQUIRE(text.find("4.0 s") != std::string::npos);
  const auto json = nlohmann::json::parse(FormatPlanJson(view));
  REQUIRE(json["plans"][0]["policy"] == "shares");
  REQUIRE(json["plans"][0]["sent"]["max"] == 3072);
  REQUIRE(json["plans"][0]["sent"]["balance"] == 1.5);
  REQUIRE(json["plans"][0]["seconds"] == 4.0);
  REQUIRE(json["trainer_ranks"] == 2);
  const std::string svg = FormatPlanSvg(view, view.plans[0]);
  REQUIRE(svg.starts_with("<svg "));
  REQUIRE(svg.find("fill-opacity=\"1.00\"") != std::string::npos);
  REQUIRE(svg.find("fill-opacity=\"0.40\"") != std::string::npos);
}

}  // namespace dws::dwsctl
