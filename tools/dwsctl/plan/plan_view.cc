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
constexpr uint64_t kJobBytesMax = uint64_t{1} << 44;

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
  if (name == "etp") return &sizes.etp.emplace();
  if (name == "fsdp") return &sizes.fsdp;
  return nullptr;
}

// A job's id may have any characters.
std::string EscapedXml(std::string_view text) {
  std::string escaped;
  for (const char c : Printable(text, 60)) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Parameters(uint64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.2f} billion parameters", number / 1e9);
  if (number >= 1e6) return fmt::format("{:.2f} million parameters", number / 1e6);
  return fmt::format("{} parameters", count);
}

// Adds a receiver's count. It is at most what the job has, so sums do not overflow.
Status Count(const v1::PlanReply& reply, const v1::PlanBytes& bytes, uint64_t& sum) {
  if (bytes.size_bytes() > reply.size_bytes() - sum) {
    return InvalidArgumentError(
        "receiver '{}' counts {} bytes of trainer rank {} after {}, the job has {} in all",
        Printable(reply.receiver_id(), 60), bytes.size_bytes(), bytes.trainer_rank(), sum,
        reply.size_bytes());
  }
  sum += bytes.size_bytes();
  return OkStatus();
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

Result<PlanView> PlanOfJob(const std::vector<v1::PlanReply>& replies) {
  if (replies.empty()) return InvalidArgumentError("no receiver has answered with a plan");
  const v1::PlanReply& first = replies.front();
  if (first.trainer_ranks() == 0 || first.trainer_ranks() > limits::kWorldSizeMax) {
    return InvalidArgumentError("receiver '{}' names {} trainer ranks, expected 1 to {}",
                                Printable(first.receiver_id(), 60), first.trainer_ranks(),
                                limits::kWorldSizeMax);
  }
  if (first.size_bytes() > kJobBytesMax) {
    return InvalidArgumentError("receiver '{}' names a job of {} bytes, at most {} are supported",
                                Printable(first.receiver_id(), 60), first.size_bytes(),
                                kJobBytesMax);
  }
  std::set<std::string_view> names;
  PlanView view{.model = first.job_id(),
                .is_job = true,
                .parameters = first.elements(),
                .model_bytes = first.size_bytes(),
                .engines = static_cast<uint32_t>(replies.size())};
  mesh::Traffic traffic{.sent = std::vector<uint64_t>(first.trainer_ranks(), 0),
                        .received = std::vector<uint64_t>(replies.size(), 0),
                        .pairs = std::vector<uint64_t>(first.trainer_ranks() * replies.size(), 0)};
  size_t slices = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    const v1::PlanReply& reply = replies[i];
    if (reply.job_id() != first.job_id() || reply.trainer_ranks() != first.trainer_ranks() ||
        reply.size_bytes() != first.size_bytes()) {
      return InvalidArgumentError(
          "receiver '{}' follows job '{}' with {} trainer ranks and {} bytes, receiver '{}' job "
          "'{}' with {} and {}: name receivers of one job",
          Printable(first.receiver_id(), 60), Printable(first.job_id(), 60), first.trainer_ranks(),
          first.size_bytes(), Printable(reply.receiver_id(), 60), Printable(reply.job_id(), 60),
          reply.trainer_ranks(), reply.size_bytes());
    }
    if (!names.insert(reply.receiver_id()).second) {
      return InvalidArgumentError("receiver '{}' has answered twice: name each once",
                                  Printable(reply.receiver_id(), 60));
    }
    view.receivers.push_back(reply.receiver_id());
    for (const v1::PlanBytes& taken : reply.taken()) {
      if (taken.trainer_rank() >= traffic.sent.size()) {
        return InvalidArgumentError("receiver '{}' takes from trainer rank {} of {}",
                                    Printable(reply.receiver_id(), 60), taken.trainer_rank(),
                                    traffic.sent.size());
      }
      traffic.sent[taken.trainer_rank()] += taken.size_bytes();
      DWS_RETURN_IF_ERROR(Count(reply, taken, traffic.received[i]));
      traffic.pairs[taken.trainer_rank() * replies.size() + i] += taken.size_bytes();
      slices += taken.slices();
    }
    uint64_t held_bytes = 0;
    for (const v1::PlanEngineRank& rank : reply.engine_ranks()) {
      uint64_t of_rank = 0;
      for (const v1::PlanBytes& held : rank.held()) {
        DWS_RETURN_IF_ERROR(Count(reply, held, of_rank));
      }
      held_bytes += of_rank;
    }
    traffic.host_bytes += held_bytes - std::min(held_bytes, traffic.received[i]);
  }
  view.plans.push_back({.policy = "owners", .regions = slices, .traffic = std::move(traffic)});
  return view;
}

std::string FormatPlan(const PlanView& view) {
  const mesh::Traffic& first = view.plans.front().traffic;
  std::string text =
      fmt::format("{}{}: {}, {}\n", view.is_job ? "job " : "", Printable(view.model, 60),
                  Parameters(view.parameters), FormatBytes(view.model_bytes));
  if (view.is_job) {
    text += fmt::format("trainer: {} ranks; {} receivers\n\n", first.sent.size(), view.engines);
  } else {
    text += fmt::format("trainer {}: {} ranks; {} engines {}: {} ranks; {} a rank\n\n",
                        view.trainer, first.sent.size(), view.engines, view.engine,
                        first.received.size(), view.nic.text);
  }
  std::vector<std::vector<std::string>> rows;
  std::vector<std::vector<std::string>> costs;
  for (const PolicyPlan& plan : view.plans) {
    const std::string& policy = plan.policy;
    for (const auto& [side, bytes] :
         {std::pair("sent", &plan.traffic.sent), std::pair("received", &plan.traffic.received)}) {
      const Spread spread = SpreadOf(*bytes);
      rows.push_back({policy, side, FormatBytes(spread.min), FormatBytes(spread.median),
                      FormatBytes(spread.max), fmt::format("{:.3f}", mesh::Balance(*bytes))});
    }
    costs.push_back(
        {policy, fmt::format("{}", plan.regions), FormatBytes(plan.traffic.host_bytes)});
    if (view.is_job) continue;
    costs.back().push_back(FormatBytes(plan.traffic.staging_bytes));
    costs.back().push_back(FormatBytes(plan.traffic.gathered_bytes));
    costs.back().push_back(FormatSeconds(mesh::SecondsAt(plan.traffic, view.nic.bytes_per_second)));
  }
  text += FormatTable({{.title = "policy", .left = true},
                       {.title = "a rank", .left = true},
                       {.title = "min"},
                       {.title = "median"},
                       {.title = "max"},
                       {.title = "max/mean"}},
                      rows, 2);
  text += "\n";
  std::vector<Column> columns = {{.title = "policy", .left = true},
                                 {.title = view.is_job ? "slices" : "regions"},
                                 {.title = "in hosts"}};
  if (!view.is_job) {
    for (const char* const title : {"staging", "gathered", "time"}) {
      columns.push_back({.title = title});
    }
  }
  return text + FormatTable(columns, costs, 2);
}

std::string FormatPlanJson(const PlanView& view) {
  const mesh::Traffic& first = view.plans.front().traffic;
  Json plans = Json::array();
  for (const PolicyPlan& plan : view.plans) {
    plans.push_back({{"policy", plan.policy},
                     {"sent", SpreadJson(plan.traffic.sent)},
                     {"received", SpreadJson(plan.traffic.received)},
                     {view.is_job ? "slices" : "regions", plan.regions},
                     {"host_bytes", plan.traffic.host_bytes}});
    if (view.is_job) continue;
    plans.back()["staging_bytes"] = plan.traffic.staging_bytes;
    plans.back()["gathered_bytes"] = plan.traffic.gathered_bytes;
    plans.back()["seconds"] = mesh::SecondsAt(plan.traffic, view.nic.bytes_per_second);
    plans.back()["digest"] = dws::ToString(plan.digest);
  }
  Json json = {{view.is_job ? "job" : "model", view.model},
               {"parameters", view.parameters},
               {"model_bytes", view.model_bytes},
               {"trainer_ranks", first.sent.size()},
               {"engines", view.engines}};
  if (view.is_job) {
    json["receivers"] = Json::array();
    for (size_t i = 0; i < view.receivers.size(); ++i) {
      Json from = Json::array();
      for (size_t rank = 0; rank < first.sent.size(); ++rank) {
        from.push_back(first.pairs[rank * view.receivers.size() + i]);
      }
      json["receivers"].push_back(
          {{"receiver_id", view.receivers[i]}, {"bytes_by_trainer_rank", std::move(from)}});
    }
  } else {
    json["trainer"] = view.trainer;
    json["engine"] = view.engine;
    json["engine_ranks"] = first.received.size();
  }
  if (!view.is_job) json["nic_bytes_per_second"] = view.nic.bytes_per_second;
  json["plans"] = std::move(plans);
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
      "<text x=\"{}\" y=\"34\">{} {}, {} a cell</text>\n"
      "<text transform=\"translate(30 {}) rotate(-90)\">{} trainer ranks, {} a cell</text>\n",
      std::max<size_t>(width, 400) + 2 * kMarginPixels,
      std::max<size_t>(height, 200) + 2 * kMarginPixels, kMarginPixels, EscapedXml(view.model),
      plan.policy, FormatBytes(most), kMarginPixels, columns_of_ranks,
      view.is_job ? "receivers" : "engine ranks", columns.ranks_of_cell,
      kMarginPixels + std::max<size_t>(height, 200), plan.traffic.sent.size(), rows.ranks_of_cell);
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
