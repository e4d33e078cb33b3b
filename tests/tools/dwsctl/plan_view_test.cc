// The plan of a job is checked, and shown in three ways with the same figures.
#include "tools/dwsctl/plan/plan_view.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace dws::dwsctl {

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
  CHECK(view->sent == std::vector<uint64_t>{2048, 2048, 1024});
  CHECK(view->received == std::vector<uint64_t>{2048, 3072});
  CHECK(view->host_bytes == 2048 + 3072);
  CHECK(view->slices == 10);
  const std::string text = FormatPlan(*view);
  CHECK_THAT(text,
             Catch::Contains("job j<1>: 3072 parameters, 6.0 KiB\n") &&
                 Catch::Contains("trainer: 3 ranks; 2 receivers\n") &&
                 Catch::Contains("sent by a trainer rank  1.0 KiB  2.0 KiB  2.0 KiB     1.200") &&
                 Catch::Contains("  10 slices, 5.0 KiB more in hosts\n"));
  const auto json = nlohmann::json::parse(FormatPlanJson(*view));
  CHECK(json["job"] == "j<1>");
  CHECK(json["receivers"][0]["bytes_by_trainer_rank"] == std::vector<uint64_t>{1024, 1024, 0});
  CHECK(json["sent"]["max"] == 2048);
  CHECK(json["received"]["balance"] == 1.2);
  CHECK(json["slices"] == 10);
  const std::string svg = FormatPlanSvg(*view);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.find("j&lt;1>: the darkest cell is 1.0 KiB") != std::string::npos);
  CHECK(svg.find("fill-opacity=\"1.00\"") != std::string::npos);

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
