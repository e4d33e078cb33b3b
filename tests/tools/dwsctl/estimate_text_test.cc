// The output of `estimate` as text and as JSON.
#include "tools/dwsctl/checkpoints/estimate_text.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/estimate_verdict.h"

namespace dws::dwsctl {
namespace {

checkpoint::Estimate Sample() {
  checkpoint::Estimate estimate;
  estimate.tensors = 2'000;
  estimate.changed_tensors = 1'500;
  estimate.elements = 1'000'000'000'000;
  estimate.changed = 8'000'000'000;
  estimate.changed_integers = 5;
  estimate.full_bytes = 2'000'000'000'000;
  estimate.fast_bytes = 10'000'000'000;
  estimate.wan_bytes = 8'000'000'000;
  estimate.slime_bytes = 22'000'000'000;
  for (int i = 0; i < 30; ++i) {
    estimate.groups.push_back(
        {.name = "model.language_model.layers.*.mlp.experts.*.gate_proj.weight" + std::to_string(i),
         .tensors = 123'456,
         .elements = 999'999'999'999,
         .changed = 7'999'999'999});
  }
  estimate.steps = {7'000'000'000, 500'000'000, 1, 2, 3, 4, 5, 6, 7};
  for (checkpoint::DensityBin& bin : estimate.densities) bin = {.tensors = 3, .bytes = 1 << 30};
  estimate.mismatches.push_back({.name = std::string(300, 'x'), .what = std::string(300, 'y')});
  return estimate;
}

const std::vector<Bandwidth> kBandwidths = {{.text = "1 Gbit/s", .bytes_per_second = 125e6},
                                            {.text = "300 MB/s", .bytes_per_second = 300e6}};

}  // namespace

TEST_CASE("an estimate fits a terminal of 80 columns whatever its names and figures", "[dwsctl]") {
  const checkpoint::Estimate estimate = Sample();
  const std::string text = FormatEstimate({.estimate = estimate, .bandwidths = kBandwidths});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
  INFO(text);
  CHECK(text.find("DWS wan") != std::string::npos);
  CHECK(text.find("and 10 more (--groups=30)") != std::string::npos);
  CHECK(text.find("...") != std::string::npos);
  CHECK(text.find("not compared") != std::string::npos);
}

TEST_CASE("an estimate says what full tensors take from GPU to GPU of one host", "[dwsctl]") {
  checkpoint::Estimate estimate = Sample();
  estimate.full_bytes = uint64_t{3} << 30;
  estimate.tensors = 8 << 20;  // half a GiB of gaps at most
  const std::string text = FormatEstimate({.estimate = estimate, .bandwidths = kBandwidths});
  INFO(text);
  const size_t begin = text.find("on one host, from GPU to GPU (device)");
  REQUIRE(begin != std::string::npos);
  const std::string table = text.substr(begin);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"over NVLink or within one GPU", "3.0 GiB"},
      {"for the sender's copy", "3.5 GiB"},
      {"beside a running engine, and --staging-bytes", "3.5 GiB"}};
  for (const auto& [name, bytes] : rows) {
    const size_t at = table.find(name);
    REQUIRE(at != std::string::npos);
    CHECK(table.substr(at, table.find('\n', at) - at).ends_with(bytes));
  }
}

TEST_CASE("without slime an estimate has no column for it", "[dwsctl]") {
  checkpoint::Estimate estimate = Sample();
  estimate.slime_bytes.reset();
  const EstimateView view{.estimate = estimate, .bandwidths = kBandwidths};
  CHECK(FormatEstimate(view).find("slime") == std::string::npos);
  CHECK_FALSE(nlohmann::json::parse(FormatEstimateJson(view)).contains("slime_bytes"));
}

TEST_CASE("an estimate in JSON has every group and exact figures", "[dwsctl]") {
  const checkpoint::Estimate estimate = Sample();
  const auto json =
      nlohmann::json::parse(FormatEstimateJson({.estimate = estimate, .bandwidths = kBandwidths}));
  CHECK(json["groups"].size() == 30);
  CHECK(json["changed"] == 8'000'000'000);
  CHECK(json["times"][1]["fast_seconds"].get<double>() == Approx(10e9 / 300e6));
  CHECK(json["steps"][2] == nlohmann::json({{"above", 2}, {"to", 4}, {"changed", 1}}));
  CHECK_FALSE(json["steps"][8].contains("to"));
  CHECK(json["device"]["bytes"] == 2'000'000'000'000);
  CHECK(json["device"]["copy_bytes"] == 2'000'000'128'000);
  CHECK(json["device"]["staging_bytes"] == 2'000'000'128'000);
  CHECK(json["mismatches"][0]["name"] == std::string(300, 'x'));
}

TEST_CASE("an estimate compares the views that it was asked for with the weights as they are",
          "[dwsctl]") {
  checkpoint::Estimate estimate = Sample();
  const EstimateView view{.estimate = estimate, .bandwidths = kBandwidths};
  CHECK(FormatEstimate(view).find("as they are") == std::string::npos);
  CHECK_FALSE(nlohmann::json::parse(FormatEstimateJson(view)).contains("views"));
  estimate.views.push_back({.name = "fp8-block128/deepseek-divide,except=" + std::string(200, 'x'),
                            .tensors = 3'000,
                            .quantised = 1'000,
                            .full_bytes = 1'000'000'000'000,
                            .fast_bytes = 1'250'000'000,
                            .wan_bytes = 1'240'000'000,
                            .codes = 999'000'000'000,
                            .changed_codes = 99'900'000,
                            .scales = 60'000'000,
                            .changed_scales = 0});
  estimate.views.push_back({.name = "mxfp8/floor", .full_bytes = 1});
  const std::string text = FormatEstimate(view);
  INFO(text);
  CHECK(text.find(
            "  as they are                   1.8 TiB   9.3 GiB  100.00 %         -         -\n") !=
        std::string::npos);
  CHECK(text.find(
            "  fp8-block128/deepseek-d...  931.3 GiB   1.2 GiB   12.50 %  0.0100 %  0.0000 %\n") !=
        std::string::npos);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  const auto json = nlohmann::json::parse(FormatEstimateJson(view))["views"];
  REQUIRE(json.size() == 2);
  CHECK(json[0]["name"] == estimate.views[0].name);
  CHECK(json[0]["ratio"].get<double>() == Approx(0.125));
  CHECK(json[0]["quantised"] == 1'000);
  CHECK(json[0]["changed_codes"] == 99'900'000);
  CHECK(json[1]["wan_bytes"] == 0);
}

TEST_CASE("an estimate ends with what the daemons would do", "[dwsctl]") {
  checkpoint::Estimate estimate = Sample();
  const EstimateView view{.estimate = estimate, .bandwidths = kBandwidths};
  const Bandwidth slow{.text = "10 MB/s", .bytes_per_second = 10e6};
  CHECK(VerdictAt(estimate, kBandwidths[1]).sent == SentAs::kFast);
  CHECK(VerdictAt(estimate, kBandwidths[1]).seconds == Approx(10e9 / 300e6));
  CHECK(VerdictAt(estimate, slow).sent == SentAs::kWan);
  CHECK(VerdictAt(estimate, slow).bytes == estimate.wan_bytes);
  CHECK(nlohmann::json::parse(FormatEstimateJson(view))["times"][1]["verdict"] == "DWS fast");
  CHECK(FormatEstimate(view).find("verdict: at") != std::string::npos);

  estimate.fast_bytes = estimate.full_bytes / 8 * 7;
  CHECK(VerdictAt(estimate, slow).sent == SentAs::kFull);
  --estimate.fast_bytes;
  CHECK(VerdictAt(estimate, slow).sent == SentAs::kWan);
  // A quarter of the weights' bytes, and a change for each 16 of them.
  estimate.fast_bytes = estimate.full_bytes / 4;
  estimate.changed = estimate.full_bytes / 16;
  CHECK(VerdictAt(estimate, kBandwidths[1]).sent == SentAs::kFull);
  CHECK(VerdictAt(estimate, slow).sent == SentAs::kWan);
  estimate.fast_bytes = estimate.full_bytes / 16;
  CHECK(VerdictAt(estimate, kBandwidths[1]).sent == SentAs::kFast);
  estimate.changed = 0;
  CHECK(VerdictAt(estimate, slow).sent == SentAs::kNothing);
  CHECK(VerdictAt(estimate, slow).seconds == 0);
}

TEST_CASE("counts are printed with three digits", "[dwsctl]") {
  CHECK(FormatCount(0) == "0");
  CHECK(FormatCount(9'999) == "9999");
  CHECK(FormatCount(10'000) == "10.0 k");
  CHECK(FormatCount(999'949) == "999.9 k");
  CHECK(FormatCount(999'950) == "1.00 M");
  CHECK(FormatCount(123'456'789) == "123.5 M");
  CHECK(FormatCount(1'000'000'000'000) == "1.0 T");
}

}  // namespace dws::dwsctl
