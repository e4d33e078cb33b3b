// The plan of a job is checked, and shown in three ways with the same figures.
#include "tools/dwsctl/plan/plan_view.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace dws::dwsctl {

namespace {

// The answers of receivers "a" and "b" in a job with 3 trainer ranks.
std::vector<v1::PlanReply> TwoReplies() {
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
  return replies;
}

}  // namespace

TEST_CASE("the plan of a job is what its receivers take from each trainer rank", "[dwsctl]") {
  const auto view = PlanOfJob(TwoReplies());
  REQUIRE(view.ok());
  CHECK(view->full.sent == std::vector<uint64_t>{2048, 2048, 1024});
  CHECK(view->full.received == std::vector<uint64_t>{2048, 3072});
  CHECK(view->held == std::vector<uint64_t>{2048, 2048, 3072, 3072});
  CHECK(view->delta.received.empty());
  CHECK(view->all_to_each_bytes() == 4 * 6144);
  CHECK(view->slices == 10);
  const std::string text = FormatPlan(*view);
  CHECK_THAT(text,
             Catch::Contains("job j<1>: 3072 parameters, P = 6.0 KiB\n") &&
                 Catch::Contains("trainer: 3 ranks; 2 receivers, 4 engine ranks\n") &&
                 Catch::Contains("full: sent by a trainer rank  1.0 KiB  2.0 KiB  2.0 KiB     "
                                 "1.200   5.0 KiB\n") &&
                 Catch::Contains("10 slices; all weights to each engine rank (ep x P): 24.0 "
                                 "KiB, 4.8x what is sent\n") &&
                 !Catch::Contains("delta:"));
  const auto json = nlohmann::json::parse(FormatPlanJson(*view));
  CHECK(json["job"] == "j<1>");
  CHECK(json["receivers"][0]["bytes_by_trainer_rank"] == std::vector<uint64_t>{1024, 1024, 0});
  CHECK(json["receivers"][1]["bytes_by_engine_rank"] == std::vector<uint64_t>{3072, 3072});
  CHECK(json["full"]["sent"]["max"] == 2048);
  CHECK(json["full"]["received"]["balance"] == 1.2);
  CHECK(json["full"]["bytes"] == 5120);
  CHECK(json["all_to_each_bytes"] == 4 * 6144);
  CHECK(json["slices"] == 10);
  CHECK(json["delta"].is_null());
  const std::string svg = FormatPlanSvg(*view);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.find("j&lt;1>: the darkest cell is 1.0 KiB") != std::string::npos);
  CHECK(svg.find("fill-opacity=\"1.00\"") != std::string::npos);
}

TEST_CASE("a plan has the last delta of the receivers that know one, and where versions wait",
          "[dwsctl]") {
  std::vector<v1::PlanReply> replies = TwoReplies();
  for (const uint64_t bytes : {10, 20, 30}) replies[1].mutable_delta()->add_fetched_bytes(bytes);
  replies[1].mutable_delta()->set_version(7);
  replies[1].mutable_delta()->set_staging_bytes(2048);
  replies[1].set_staging_bytes(3072);
  replies[1].set_staging_file_bytes(1024);
  replies[1].set_staging_bytes_max(4096);
  const auto view = PlanOfJob(replies);
  REQUIRE(view.ok());
  CHECK(view->delta.sent == std::vector<uint64_t>{10, 20, 30});
  CHECK(view->delta.received == std::vector<uint64_t>{60});
  CHECK_THAT(
      FormatPlan(*view),
      Catch::Contains("delta: sent by a trainer rank     10 B     20 B     30 B     1.500") &&
          Catch::Contains(
              "b                    2          3.0 KiB    1.0 KiB  4.0 KiB  3.0 KiB      "
              "7    2.0 KiB\n"));
  const auto json = nlohmann::json::parse(FormatPlanJson(*view));
  CHECK(json["delta"]["bytes"] == 60);
  CHECK(json["receivers"][0]["delta"].is_null());
  CHECK(json["receivers"][1]["delta"]["version"] == 7);
  CHECK(json["receivers"][1]["delta"]["bytes_by_trainer_rank"] ==
        std::vector<uint64_t>{10, 20, 30});
  CHECK(json["receivers"][1]["staging_file_bytes"] == 1024);
  CHECK(json["receivers"][1]["staging_bytes_needed"] == 3 * 1024);

  replies[1].mutable_delta()->set_fetched_bytes(0, UINT64_MAX);
  CHECK(absl::IsInvalidArgument(PlanOfJob(replies).status()));
  replies[1].mutable_delta()->clear_fetched_bytes();
  CHECK(Message(PlanOfJob(replies).status()).find("a delta of 0 trainer ranks") !=
        std::string_view::npos);
}

TEST_CASE("plans that do not fit together, or count more than there is, are refused", "[dwsctl]") {
  std::vector<v1::PlanReply> replies = TwoReplies();
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
