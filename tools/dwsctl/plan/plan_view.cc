#include "tools/dwsctl/plan/plan_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/bytes.h"
#include "common/model/limits.h"
#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCellsMax = 128;  // of the picture, in each direction
constexpr size_t kCellPixels = 6;
constexpr size_t kMarginPixels = 40;

struct Spread {
  uint64_t min = 0;
  uint64_t median = 0;
  uint64_t max = 0;
};

Spread SpreadOf(std::vector<uint64_t> bytes) {
  std::sort(bytes.begin(), bytes.end());
  return {.min = bytes.front(), .median = bytes[bytes.size() / 2], .max = bytes.back()};
}

Json SpreadJson(const std::vector<uint64_t>& bytes) {
  const Spread spread = SpreadOf(bytes);
  return {{"min", spread.min},
          {"median", spread.median},
          {"max", spread.max},
          {"balance", mesh::Balance(bytes)}};
}

uint32_t* SizeNamed(mesh::ParallelSizes& sizes, std::string_view name) {
  if (name == "tp") return &sizes.tp;
  if (name == "pp") return &sizes.pp;
  if (name == "dp") return &sizes.dp;
  if (name == "ep") return &sizes.ep;
  if (name == "etp") return &sizes.etp;
  if (name == "fsdp") return &sizes.fsdp;
  return nullptr;
}

// Ranks of one side, several a cell when there are more than kCellsMax.
struct Cells {
  explicit Cells(size_t ranks)
      : ranks_of_cell(CeilDiv(ranks, kCellsMax)), count(CeilDiv(ranks, ranks_of_cell)) {}
  size_t ranks_of_cell;
  size_t count;
};

}  // namespace

Result<mesh::ParallelSizes> ParseSizes(std::string_view flag, std::string_view text) {
  mesh::ParallelSizes sizes;
  std::set<std::string_view> seen;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::string_view name = part.substr(0, part.find('='));
    uint32_t* size = SizeNamed(sizes, name);
    uint32_t number = 0;
    const char* end = part.data() + part.size();
    const bool parsed = size != nullptr && name.size() < part.size() &&
                        std::from_chars(part.data() + name.size() + 1, end, number).ptr == end &&
                        number > 0 && number <= limits::kWorldSizeMax && seen.insert(name).second;
    if (!parsed) {
      return InvalidArgumentError(
          "{}: '{}': expected NAME=N with tp, pp, dp, ep, etp or fsdp, each once, from 1 to {}",
          flag, Printable(part, 60), limits::kWorldSizeMax);
    }
    *size = number;
  }
  // Other sizes would be ignored: the ranks of FSDP are all there are.
  if (sizes.fsdp > 0 && seen.size() > 1) {
    return InvalidArgumentError("{}: fsdp excludes the other sizes", flag);
  }
  return sizes;
}

std::string_view ToString(mesh::SharePolicy policy) {
  switch (policy) {
    case mesh::SharePolicy::kShares:
      return "shares";
    case mesh::SharePolicy::kLeastLoaded:
      return "least-loaded";
    case mesh::SharePolicy::kRoundRobin:
      return "round-robin";
    case mesh::SharePolicy::kBroadcast:
      return "broadcast";
  }
  return "";
}

std::string FormatPlan(const PlanView& view) {
  const mesh::Traffic& first = view.plans.front().traffic;
  std::string text = fmt::format(
      "{}: {:.2f} billion parameters, {}\n"
      "trainer {}: {} ranks; {} engines {}: {} ranks; {} a rank\n\n",
      view.model, static_cast<double>(view.parameters) / 1e9, FormatBytes(view.model_bytes),
      view.trainer, first.sent.size(), view.engines, view.engine, first.received.size(),
      view.nic.text);
  std::vector<std::vector<std::string>> rows;
  std::vector<std::vector<std::string>> costs;
  for (const PolicyPlan& plan : view.plans) {
    const std::string policy(ToString(plan.policy));
    for (const auto& [side, bytes] :
         {std::pair("sent", &plan.traffic.sent), std::pair("received", &plan.traffic.received)}) {
      const Spread spread = SpreadOf(*bytes);
      rows.push_back({policy, side, FormatBytes(spread.min), FormatBytes(spread.median),
                      FormatBytes(spread.max), fmt::format("{:.3f}", mesh::Balance(*bytes))});
    }
    costs.push_back({policy, fmt::format("{}", plan.regions),
                     FormatBytes(plan.traffic.staging_bytes), FormatBytes(plan.traffic.host_bytes),
                     FormatBytes(plan.traffic.gathered_bytes),
                     FormatSeconds(mesh::SecondsAt(plan.traffic, view.nic.bytes_per_second))});
  }
  text += FormatTable({{.title = "policy", .left = true},
                       {.title = "a rank", .left = true},
                       {.title = "min"},
                       {.title = "median"},
                       {.title = "max"},
                       {.title = "max/mean"}},
                      rows, 2);
  text += "\n";
  text += FormatTable({{.title = "policy", .left = true},
                       {.title = "regions"},
                       {.title = "staging"},
                       {.title = "in hosts"},
                       {.title = "gathered"},
                       {.title = "time"}},
                      costs, 2);
  return text;
}

std::string FormatPlanJson(const PlanView& view) {
  const mesh::Traffic& first = view.plans.front().traffic;
  Json plans = Json::array();
  for (const PolicyPlan& plan : view.plans) {
    plans.push_back({{"policy", ToString(plan.policy)},
                     {"digest", dws::ToString(plan.digest)},
                     {"sent", SpreadJson(plan.traffic.sent)},
                     {"received", SpreadJson(plan.traffic.received)},
                     {"regions", plan.regions},
                     {"staging_bytes", plan.traffic.staging_bytes},
                     {"host_bytes", plan.traffic.host_bytes},
                     {"gathered_bytes", plan.traffic.gathered_bytes},
                     {"seconds", mesh::SecondsAt(plan.traffic, view.nic.bytes_per_second)}});
  }
  const Json json = {{"model", view.model},
                     {"parameters", view.parameters},
                     {"model_bytes", view.model_bytes},
                     {"trainer", view.trainer},
                     {"trainer_ranks", first.sent.size()},
                     {"engine", view.engine},
                     {"engines", view.engines},
                     {"engine_ranks", first.received.size()},
                     {"nic_bytes_per_second", view.nic.bytes_per_second},
                     {"plans", std::move(plans)}};
  return json.dump(2) + "\n";
}

std::string FormatPlanSvg(const PlanView& view, const PolicyPlan& plan) {
  const size_t columns_of_ranks = plan.traffic.received.size();
  const Cells rows(plan.traffic.sent.size());
  const Cells columns(columns_of_ranks);
  std::vector<uint64_t> bytes(rows.count * columns.count, 0);
  for (size_t i = 0; i < plan.traffic.pairs.size(); ++i) {
    const size_t row = i / columns_of_ranks / rows.ranks_of_cell;
    const size_t column = i % columns_of_ranks / columns.ranks_of_cell;
    bytes[row * columns.count + column] += plan.traffic.pairs[i];
  }
  const uint64_t most = std::max<uint64_t>(1, *std::max_element(bytes.begin(), bytes.end()));
  const size_t width = columns.count * kCellPixels;
  const size_t height = rows.count * kCellPixels;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{}\" y=\"16\">{}, {}: the darkest cell is {}</text>\n"
      "<text x=\"{}\" y=\"34\">{} engine ranks, {} a cell</text>\n"
      "<text transform=\"translate(30 {}) rotate(-90)\">{} trainer ranks, {} a cell</text>\n",
      std::max<size_t>(width, 400) + 2 * kMarginPixels,
      std::max<size_t>(height, 200) + 2 * kMarginPixels, kMarginPixels, view.model,
      ToString(plan.policy), FormatBytes(most), kMarginPixels, columns_of_ranks,
      columns.ranks_of_cell, kMarginPixels + std::max<size_t>(height, 200),
      plan.traffic.sent.size(), rows.ranks_of_cell);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    const double share = static_cast<double>(bytes[i]) / static_cast<double>(most);
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#204a87\" "
        "fill-opacity=\"{:.2f}\"/>\n",
        kMarginPixels + i % columns.count * kCellPixels,
        kMarginPixels + i / columns.count * kCellPixels, kCellPixels, kCellPixels,
        0.1 + 0.9 * share);
  }
  return svg + "</svg>\n";
}

}  // namespace dws::dwsctl
