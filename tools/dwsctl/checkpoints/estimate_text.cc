#include "tools/dwsctl/checkpoints/estimate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/estimate_verdict.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

using checkpoint::Estimate;
using checkpoint::GroupEstimate;
using checkpoint::kDensityEnds;
using checkpoint::kStepBins;
using checkpoint::StepBinEnd;

constexpr size_t kGroupColumns = 40;
constexpr size_t kViewColumns = 26;
constexpr size_t kMismatchesShown = 20;

// Few codes change: a share with more digits than FormatShare.
std::string FormatSmallShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.4f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// The ways to send the change, with the names used in the tables, and their bytes.
std::vector<std::pair<std::string, uint64_t>> Ways(const Estimate& estimate) {
  std::vector<std::pair<std::string, uint64_t>> ways = {{"full", estimate.full_bytes}};
  if (estimate.slime_bytes.has_value()) ways.emplace_back("slime", *estimate.slime_bytes);
  ways.emplace_back("DWS fast", estimate.fast_bytes);
  ways.emplace_back("DWS wan", estimate.wan_bytes);
  return ways;
}

std::string SizesTable(const Estimate& estimate) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, bytes] : Ways(estimate)) {
    rows.push_back({name, FormatBytes(bytes), FormatShare(bytes, estimate.full_bytes),
                    FormatRatio(estimate.full_bytes, bytes),
                    estimate.changed == 0
                        ? "-"
                        : fmt::format("{:.2f} B", static_cast<double>(bytes) /
                                                      static_cast<double>(estimate.changed))});
  }
  return FormatTable({{.title = "sent as", .left = true},
                      {.title = "bytes"},
                      {.title = "of full"},
                      {.title = "smaller"},
                      {.title = "a changed element"}},
                     rows, 2);
}

std::string TimesTable(const EstimateView& view) {
  std::vector<Column> columns = {{.title = "transfer at", .left = true}};
  const auto ways = Ways(view.estimate);
  for (const auto& [name, bytes] : ways) columns.push_back({.title = name});
  std::vector<std::vector<std::string>> rows;
  for (const Bandwidth& bandwidth : view.bandwidths) {
    std::vector<std::string> row = {Printable(bandwidth.text, 20)};
    for (const auto& [name, bytes] : ways) {
      row.push_back(FormatSeconds(static_cast<double>(bytes) / bandwidth.bytes_per_second));
    }
    rows.push_back(std::move(row));
  }
  return FormatTable(columns, rows, 2);
}

std::string GroupsTable(const EstimateView& view) {
  const std::vector<GroupEstimate>& groups = view.estimate.groups;
  const size_t shown = std::min(groups.size(), view.groups_max);
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < shown; ++i) {
    const GroupEstimate& group = groups[i];
    rows.push_back({PrintableEnd(group.name, kGroupColumns), FormatCount(group.tensors),
                    FormatCount(group.elements), FormatCount(group.changed),
                    FormatShare(group.changed, group.elements)});
  }
  std::string text = FormatTable({{.title = "group", .left = true},
                                  {.title = "tensors"},
                                  {.title = "elements"},
                                  {.title = "changed"},
                                  {.title = "density"}},
                                 rows, 2);
  if (shown < groups.size()) {
    text += fmt::format("  and {} more (--groups={})\n", groups.size() - shown, groups.size());
  }
  return text;
}

std::string MatrixScales(const Estimate& estimate) {
  std::string text;
  for (const checkpoint::ViewEstimate& of : estimate.views) {
    if (of.matrix_scales == 0) continue;
    text +=
        fmt::format("  {}: {} of {} scales of matrices moved\n", Printable(of.name, kViewColumns),
                    FormatCount(of.changed_matrix_scales), FormatCount(of.matrix_scales));
  }
  return text;
}

std::string ViewsTable(const Estimate& estimate) {
  if (estimate.views.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"as they are", FormatBytes(estimate.full_bytes), FormatBytes(estimate.fast_bytes),
       FormatShare(estimate.fast_bytes, estimate.fast_bytes), "-", "-"}};
  for (const checkpoint::ViewEstimate& of : estimate.views) {
    rows.push_back({Printable(of.name, kViewColumns), FormatBytes(of.full_bytes),
                    FormatBytes(of.fast_bytes), FormatShare(of.fast_bytes, estimate.fast_bytes),
                    FormatSmallShare(of.changed_codes, of.codes),
                    FormatSmallShare(of.changed_scales, of.scales)});
  }
  return FormatTable({{.title = "view", .left = true},
                      {.title = "full"},
                      {.title = "DWS fast"},
                      {.title = "of that"},
                      {.title = "codes"},
                      {.title = "scales"}},
                     rows, 2) +
         MatrixScales(estimate) +
         "  codes that changed, scales that moved; docs/views.md has the views\n\n";
}

std::string StepName(size_t bin) {
  if (bin + 1 == kStepBins) return fmt::format("> {}", StepBinEnd(bin - 1));
  const uint64_t begin = bin == 0 ? 1 : StepBinEnd(bin - 1) + 1;
  return begin == StepBinEnd(bin) ? fmt::format("{}", begin)
                                  : fmt::format("{}-{}", begin, StepBinEnd(bin));
}

std::string StepsTable(const Estimate& estimate) {
  uint64_t floats = 0;
  for (const uint64_t count : estimate.steps) floats += count;
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < kStepBins; ++i) {
    rows.push_back(
        {StepName(i), FormatCount(estimate.steps[i]), FormatShare(estimate.steps[i], floats)});
  }
  if (estimate.changed_integers > 0) {
    rows.push_back({"integers", FormatCount(estimate.changed_integers), "-"});
  }
  return FormatTable(
      {{.title = "step, in ulp", .left = true}, {.title = "changed"}, {.title = "share"}}, rows, 2);
}

std::string DensityName(size_t bin) {
  if (bin == 0) return "unchanged";
  const auto percent = [](double share) { return fmt::format("{:g} %", 100 * share); };
  if (bin == kDensityEnds.size()) return "> " + percent(kDensityEnds[bin - 2]);
  return "up to " + percent(kDensityEnds[bin - 1]);
}

std::string DensitiesTable(const Estimate& estimate) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < estimate.densities.size(); ++i) {
    const checkpoint::DensityBin& bin = estimate.densities[i];
    if (bin.tensors == 0) continue;
    rows.push_back({DensityName(i), FormatCount(bin.tensors), FormatBytes(bin.bytes),
                    FormatShare(bin.bytes, estimate.full_bytes)});
  }
  return FormatTable({{.title = "tensors with a density", .left = true},
                      {.title = "tensors"},
                      {.title = "bytes"},
                      {.title = "of all"}},
                     rows, 2);
}

std::string Verdicts(const EstimateView& view) {
  const Estimate& estimate = view.estimate;
  std::vector<std::vector<std::string>> rows;
  for (const Bandwidth& bandwidth : view.bandwidths) {
    const Verdict verdict = VerdictAt(estimate, bandwidth);
    rows.push_back({Printable(bandwidth.text, 20), std::string(ToString(verdict.sent)),
                    FormatSeconds(verdict.seconds),
                    FormatRatio(estimate.full_bytes, verdict.bytes)});
    if (!estimate.slime_bytes.has_value()) continue;
    rows.back().push_back(FormatRatio(*estimate.slime_bytes, verdict.bytes));
  }
  std::vector<Column> columns = {{.title = "verdict: at", .left = true},
                                 {.title = "send", .left = true},
                                 {.title = "takes"},
                                 {.title = "than full"}};
  if (estimate.slime_bytes.has_value()) columns.push_back({.title = "than slime"});
  return FormatTable(columns, rows, 2);
}

std::string OnOneHost(const Estimate& estimate) {
  const DeviceWay device = DeviceWayOf(estimate);
  return FormatTable(
             {{.title = "on one host, from GPU to GPU (device)", .left = true}, {.title = "bytes"}},
             {{"full tensors, over NVLink or within one GPU", FormatBytes(device.bytes)},
              {"GPU memory for the sender's copy", FormatBytes(device.copy_bytes)},
              {"GPU memory beside a running engine, and --staging-bytes",
               FormatBytes(device.staging_bytes)}},
             2) +
         "  what does not fit there comes from the sender's memory on the host; deltas are\n"
         "  made and applied by the host; docs/transports.md has the ways\n";
}

std::string Mismatches(const Estimate& estimate) {
  if (estimate.mismatches.empty()) return "";
  std::string text = fmt::format("\nnot compared, {} tensors that A and B do not share:\n",
                                 estimate.mismatches.size());
  const size_t shown = std::min(estimate.mismatches.size(), kMismatchesShown);
  for (size_t i = 0; i < shown; ++i) {
    const checkpoint::TensorMismatch& mismatch = estimate.mismatches[i];
    text += fmt::format("  {}: {}\n", PrintableEnd(mismatch.name, kGroupColumns),
                        Printable(mismatch.what, 34));
  }
  if (shown < estimate.mismatches.size()) {
    text += fmt::format("  and {} more (--json)\n", estimate.mismatches.size() - shown);
  }
  return text;
}

nlohmann::json TimesJson(const EstimateView& view) {
  nlohmann::json times = nlohmann::json::array();
  const Estimate& estimate = view.estimate;
  for (const Bandwidth& bandwidth : view.bandwidths) {
    const auto seconds = [&bandwidth](uint64_t bytes) {
      return static_cast<double>(bytes) / bandwidth.bytes_per_second;
    };
    nlohmann::json time = {{"bandwidth", bandwidth.text},
                           {"bytes_per_second", bandwidth.bytes_per_second},
                           {"full_seconds", seconds(estimate.full_bytes)},
                           {"fast_seconds", seconds(estimate.fast_bytes)},
                           {"wan_seconds", seconds(estimate.wan_bytes)}};
    time["verdict"] = ToString(VerdictAt(estimate, bandwidth).sent);
    if (estimate.slime_bytes.has_value()) time["slime_seconds"] = seconds(*estimate.slime_bytes);
    times.push_back(std::move(time));
  }
  return times;
}

nlohmann::json ViewsJson(const Estimate& estimate) {
  nlohmann::json views = nlohmann::json::array();
  for (const checkpoint::ViewEstimate& of : estimate.views) {
    views.push_back({{"name", of.name},
                     {"tensors", of.tensors},
                     {"quantised", of.quantised},
                     {"full_bytes", of.full_bytes},
                     {"fast_bytes", of.fast_bytes},
                     {"wan_bytes", of.wan_bytes},
                     {"codes", of.codes},
                     {"changed_codes", of.changed_codes},
                     {"scales", of.scales},
                     {"changed_scales", of.changed_scales},
                     {"matrix_scales", of.matrix_scales},
                     {"changed_matrix_scales", of.changed_matrix_scales}});
    if (estimate.fast_bytes > 0) {
      views.back()["ratio"] =
          static_cast<double>(of.fast_bytes) / static_cast<double>(estimate.fast_bytes);
    }
  }
  return views;
}

}  // namespace

std::string FormatEstimate(const EstimateView& view) {
  const Estimate& estimate = view.estimate;
  return fmt::format("{} of {} tensors change, {} of {} elements: {} of {}\n\n",
                     FormatCount(estimate.changed_tensors), FormatCount(estimate.tensors),
                     FormatCount(estimate.changed), FormatCount(estimate.elements),
                     FormatShare(estimate.changed, estimate.elements),
                     FormatBytes(estimate.full_bytes)) +
         SizesTable(estimate) + "\n" + TimesTable(view) + "\n" + ViewsTable(estimate) +
         GroupsTable(view) + "\n" + StepsTable(estimate) + "\n" + DensitiesTable(estimate) +
         Mismatches(estimate) + "\n" + Verdicts(view) + "\n" + OnOneHost(estimate);
}

std::string FormatEstimateJson(const EstimateView& view) {
  const Estimate& estimate = view.estimate;
  const DeviceWay device = DeviceWayOf(estimate);
  nlohmann::json json = {{"tensors", estimate.tensors},
                         {"changed_tensors", estimate.changed_tensors},
                         {"elements", estimate.elements},
                         {"changed", estimate.changed},
                         {"changed_integers", estimate.changed_integers},
                         {"full_bytes", estimate.full_bytes},
                         {"fast_bytes", estimate.fast_bytes},
                         {"wan_bytes", estimate.wan_bytes},
                         {"device",
                          {{"bytes", device.bytes},
                           {"copy_bytes", device.copy_bytes},
                           {"staging_bytes", device.staging_bytes}}},
                         {"times", TimesJson(view)},
                         {"groups", nlohmann::json::array()},
                         {"steps", nlohmann::json::array()},
                         {"densities", nlohmann::json::array()},
                         {"mismatches", nlohmann::json::array()}};
  if (estimate.slime_bytes.has_value()) json["slime_bytes"] = *estimate.slime_bytes;
  if (!estimate.views.empty()) json["views"] = ViewsJson(estimate);
  for (const GroupEstimate& group : estimate.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"tensors", group.tensors},
                              {"elements", group.elements},
                              {"changed", group.changed},
                              {"bytes", group.bytes},
                              {"changed_bytes", group.changed_bytes}});
  }
  for (size_t i = 0; i < kStepBins; ++i) {
    nlohmann::json step = {{"above", i == 0 ? 0 : StepBinEnd(i - 1)},
                           {"changed", estimate.steps[i]}};
    if (i + 1 < kStepBins) step["to"] = StepBinEnd(i);
    json["steps"].push_back(std::move(step));
  }
  for (size_t i = 0; i < estimate.densities.size(); ++i) {
    json["densities"].push_back({{"to", i == 0 ? 0.0 : kDensityEnds[i - 1]},
                                 {"tensors", estimate.densities[i].tensors},
                                 {"bytes", estimate.densities[i].bytes}});
  }
  for (const checkpoint::TensorMismatch& mismatch : estimate.mismatches) {
    json["mismatches"].push_back({{"name", mismatch.name}, {"what", mismatch.what}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dws::dwsctl
