// Sizes of parallelism are parsed strictly, and a plan is shown in three ways with the same
// figures.
#include "tools/dwsctl/plan/plan_view.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace dws::dwsctl {
namespace {

PlanView MakeView() {
  PolicyPlan plan{.policy = "shares", .regions = 3};
  plan.traffic = {.sent = {1024, 3072}, .received = {4096}, .pairs = {1024, 3072}};
  return {.model = "qwen3-8b",
          .is_job = false,
          .parameters = 8'190'735'360,
          .model_bytes = 16'381'470'720,
          .trainer = "dp=2",
          .engine = "tp=1",
          .engines = 1,
          .receivers = {},
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
  REQUIRE(ParseSizes("--trainer", "fsdp=16,dp=2")->RankCount() == 32);
  REQUIRE_FALSE(ParseSizes("--engine", "tp=8")->etp.has_value());  // as many as ep leaves
  for (const char* wrong : {"tp", "tp=", "tp=0", "tp=-1", "tp=5000", "tp=2x", "cp=2", "tp=2,tp=2",
                            ",tp=2", "tp=99999999999", "etp=2,etp=2", "etp=0"}) {
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

TEST_CASE("the plan of a job is what its receivers take from each trainer rank", "[dwsctl]") {
  std::vector<v1::PlanReply> replies(2);
  for (size_t i = 0; i < 2; ++i) {
    replies[i].set_job_id("j<1>");
    replies[i].set_receiver_id(i == 0 ? "a" : "b");
    replies[i].set_trainer_ranks(3);
    replies[i].set_elements(3072);
    replies[i].set_size_bytes(6144);
    for (uint32_t rank = 0; rank < 2 + i; ++rank) {
      v1::PlanBytes& taken = *replies[i].add_taken();
      taken.set_trainer_rank(rank);
      taken.set_slices(2);
      taken.set_size_bytes(1024);
    }
    // Two engine ranks with the same weights: the second copy stays on the host.
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::PlanEngineRank& engine = *replies[i].add_engine_ranks();
      *engine.mutable_held() = replies[i].taken();
    }
  }
  const auto view = PlanOfJob(replies);
  REQUIRE(view.ok());
  const mesh::Traffic& traffic = view->plans[0].traffic;
  CHECK(traffic.sent == std::vector<uint64_t>{2048, 2048, 1024});
  CHECK(traffic.received == std::vector<uint64_t>{2048, 3072});
  CHECK(traffic.host_bytes == 2048 + 3072);
  CHECK(view->plans[0].regions == 10);
  const std::string text = FormatPlan(*view);
  CHECK_THAT(text, Catch::Contains("job j<1>: 3072 parameters, 6.0 KiB\n") &&
                       Catch::Contains("trainer: 3 ranks; 2 receivers\n") &&
                       Catch::Contains("policy  slices  in hosts\n"));
  for (const char* const calculated : {"staging", "gathered", "time", "/s"}) {
    CHECK(text.find(calculated) == std::string::npos);
  }
  const auto json = nlohmann::json::parse(FormatPlanJson(*view));
  CHECK(json["job"] == "j<1>");
  CHECK(json["receivers"][0]["bytes_by_trainer_rank"] == std::vector<uint64_t>{1024, 1024, 0});
  CHECK(json["plans"][0]["sent"]["max"] == 2048);
  CHECK(json["plans"][0]["slices"] == 10);
  CHECK_FALSE(json["plans"][0].contains("seconds"));
  CHECK(FormatPlanSvg(*view, view->plans[0]).find("j&lt;1>, owners") != std::string::npos);

  replies[1].set_job_id("other");
  const Status mixed = PlanOfJob(replies).status();
  CHECK(Message(mixed).find("'other'") != std::string_view::npos);
  CHECK_FALSE(PlanOfJob({}).ok());
  replies[1] = replies[0];
  CHECK(Message(PlanOfJob(replies).status()).find("twice") != std::string_view::npos);
  replies.resize(1);
  for (const uint64_t bytes : {uint64_t{6145}, UINT64_MAX}) {
    for (v1::PlanBytes* counted :
         {replies[0].mutable_taken(0), replies[0].mutable_engine_ranks(0)->mutable_held(0)}) {
      counted->set_size_bytes(bytes);
      CHECK(absl::IsInvalidArgument(PlanOfJob(replies).status()));
      counted->set_size_bytes(1024);
    }
  }
  for (const uint32_t ranks : {0U, 1U, 4'000'000'000U}) {
    replies[0].set_trainer_ranks(ranks);
    CHECK_FALSE(PlanOfJob(replies).ok());
  }
}

}  // namespace dws::dwsctl
