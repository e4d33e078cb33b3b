// Replies come from daemons of any build, so every sum of theirs is checked before it is shown.
#include "tools/dwsctl/plan/plan_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>

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
  double balance = 1;  // the most over the mean; 1 if there are none
};

Spread SpreadOf(std::vector<uint64_t> bytes) {
  if (bytes.empty()) return {};
  std::sort(bytes.begin(), bytes.end());
  const uint64_t sum = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  Spread spread{.min = bytes.front(), .median = bytes[bytes.size() / 2], .max = bytes.back()};
  if (sum > 0) {
    spread.balance = static_cast<double>(spread.max) * static_cast<double>(bytes.size()) /
                     static_cast<double>(sum);
  }
  return spread;
}

Json SpreadJson(const std::vector<uint64_t>& bytes) {
  const Spread spread = SpreadOf(bytes);
  return {{"min", spread.min},
          {"median", spread.median},
          {"max", spread.max},
          {"balance", spread.balance}};
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

// Adds what a receiver counts, of which `most` is possible. So sums do not overflow.
Status Count(const v1::PlanReply& reply, uint64_t bytes, uint64_t most, uint64_t& sum) {
  if (bytes > most - sum) {
    return InvalidArgumentError("receiver '{}' counts {} bytes after {}, at most {} are possible",
                                Printable(reply.receiver_id(), 60), bytes, sum, most);
  }
  sum += bytes;
  return OkStatus();
}

Status CheckSizes(const v1::PlanReply& reply) {
  if (reply.trainer_ranks() == 0 || reply.trainer_ranks() > limits::kWorldSizeMax) {
    return InvalidArgumentError("receiver '{}' names {} trainer ranks, expected 1 to {}",
                                Printable(reply.receiver_id(), 60), reply.trainer_ranks(),
                                limits::kWorldSizeMax);
  }
  if (reply.size_bytes() > kJobBytesMax) {
    return InvalidArgumentError("receiver '{}' names a job of {} bytes, at most {} are supported",
                                Printable(reply.receiver_id(), 60), reply.size_bytes(),
                                kJobBytesMax);
  }
  return OkStatus();
}

Status CheckSameJob(const v1::PlanReply& first, const v1::PlanReply& reply) {
  if (reply.job_id() == first.job_id() && reply.trainer_ranks() == first.trainer_ranks() &&
      reply.size_bytes() == first.size_bytes()) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "receiver '{}' follows job '{}' with {} trainer ranks and {} bytes, receiver '{}' job '{}' "
      "with {} and {}: name receivers of one job",
      Printable(first.receiver_id(), 60), Printable(first.job_id(), 60), first.trainer_ranks(),
      first.size_bytes(), Printable(reply.receiver_id(), 60), Printable(reply.job_id(), 60),
      reply.trainer_ranks(), reply.size_bytes());
}

Status AddFull(const v1::PlanReply& reply, PlanReceiver& receiver, PlanView& view) {
  const uint64_t most = reply.size_bytes();
  uint64_t received = 0;
  for (const v1::PlanBytes& taken : reply.taken()) {
    if (taken.trainer_rank() >= receiver.taken.size()) {
      return InvalidArgumentError("receiver '{}' takes from trainer rank {} of {}",
                                  Printable(reply.receiver_id(), 60), taken.trainer_rank(),
                                  receiver.taken.size());
    }
    DWS_RETURN_IF_ERROR(Count(reply, taken.size_bytes(), most, received));
    receiver.taken[taken.trainer_rank()] += taken.size_bytes();
    view.full.sent[taken.trainer_rank()] += taken.size_bytes();
    view.slices += taken.slices();
  }
  view.full.received.push_back(received);
  for (const v1::PlanEngineRank& rank : reply.engine_ranks()) {
    uint64_t held = 0;
    for (const v1::PlanBytes& bytes : rank.held()) {
      DWS_RETURN_IF_ERROR(Count(reply, bytes.size_bytes(), most, held));
    }
    receiver.held.push_back(held);
    view.held.push_back(held);
  }
  if (view.held.size() > limits::kWorldSizeMax) {
    return InvalidArgumentError("{} engine ranks, at most {} can be shown", view.held.size(),
                                limits::kWorldSizeMax);
  }
  return OkStatus();
}

Status AddDelta(const v1::PlanReply& reply, PlanReceiver& receiver, PlanView& view) {
  if (!reply.has_delta()) return OkStatus();
  const v1::PlanDelta& delta = reply.delta();
  if (static_cast<size_t>(delta.fetched_bytes_size()) != view.delta.sent.size()) {
    return InvalidArgumentError("receiver '{}' has a delta of {} trainer ranks, expected {}",
                                Printable(reply.receiver_id(), 60), delta.fetched_bytes_size(),
                                view.delta.sent.size());
  }
  receiver.delta = PlanReceiver::Delta{
      .version = delta.version(), .taken = {}, .staging_bytes = delta.staging_bytes()};
  uint64_t received = 0;
  for (int rank = 0; rank < delta.fetched_bytes_size(); ++rank) {
    const uint64_t bytes = delta.fetched_bytes(rank);
    DWS_RETURN_IF_ERROR(Count(reply, bytes, kJobBytesMax, received));
    receiver.delta->taken.push_back(bytes);
    view.delta.sent[static_cast<size_t>(rank)] += bytes;
  }
  view.delta.received.push_back(received);
  return OkStatus();
}

Status AddReceiver(const v1::PlanReply& reply, PlanView& view) {
  PlanReceiver receiver{.receiver_id = reply.receiver_id(),
                        .taken = std::vector<uint64_t>(view.full.sent.size(), 0),
                        .held = {},
                        .staging_bytes = reply.staging_bytes(),
                        .staging_file_bytes = reply.staging_file_bytes(),
                        .staging_bytes_max = reply.staging_bytes_max(),
                        .delta = {}};
  DWS_RETURN_IF_ERROR(AddFull(reply, receiver, view));
  DWS_RETURN_IF_ERROR(AddDelta(reply, receiver, view));
  view.receivers.push_back(std::move(receiver));
  return OkStatus();
}

std::vector<std::string> SpreadRow(std::string what, const std::vector<uint64_t>& bytes) {
  const Spread spread = SpreadOf(bytes);
  const uint64_t sum = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  return {std::move(what),
          FormatBytes(spread.min),
          FormatBytes(spread.median),
          FormatBytes(spread.max),
          fmt::format("{:.3f}", spread.balance),
          FormatBytes(sum)};
}

std::string ReceiverTable(const PlanView& view) {
  std::vector<std::vector<std::string>> rows;
  for (const PlanReceiver& receiver : view.receivers) {
    rows.push_back({Printable(receiver.receiver_id, 40), fmt::format("{}", receiver.held.size()),
                    FormatBytes(receiver.staging_bytes), FormatBytes(receiver.staging_file_bytes),
                    FormatBytes(receiver.staging_bytes_max),
                    FormatBytes(receiver.staging_bytes_needed()), "-", "-"});
    if (!receiver.delta.has_value()) continue;
    rows.back()[6] = FormatVersion(receiver.delta->version);
    rows.back()[7] = FormatBytes(receiver.delta->staging_bytes);
  }
  return FormatTable({{.title = "receiver", .left = true},
                      {.title = "engine ranks"},
                      {.title = "full: in memory"},
                      {.title = "in a file"},
                      {.title = "cap"},
                      {.title = "needed"},
                      {.title = "delta"},
                      {.title = "in memory"}},
                     rows, 2);
}

Json TrafficJson(const PlanTraffic& traffic) {
  return {{"bytes", traffic.bytes()},
          {"sent", SpreadJson(traffic.sent)},
          {"received", SpreadJson(traffic.received)}};
}

Json ReceiverJson(const PlanReceiver& receiver) {
  Json json = {{"receiver_id", receiver.receiver_id},
               {"bytes_by_trainer_rank", receiver.taken},
               {"bytes_by_engine_rank", receiver.held},
               {"staging_bytes", receiver.staging_bytes},
               {"staging_file_bytes", receiver.staging_file_bytes},
               {"staging_bytes_max", receiver.staging_bytes_max},
               {"staging_bytes_needed", receiver.staging_bytes_needed()},
               {"delta", nullptr}};
  if (receiver.delta.has_value()) {
    json["delta"] = {{"version", receiver.delta->version},
                     {"bytes_by_trainer_rank", receiver.delta->taken},
                     {"staging_bytes", receiver.delta->staging_bytes}};
  }
  return json;
}

// Ranks of one side, several a cell when there are more than kCellsMax.
struct Cells {
  explicit Cells(size_t ranks)
      : ranks_of_cell(CeilDiv(ranks, kCellsMax)), count(CeilDiv(ranks, ranks_of_cell)) {}
  size_t ranks_of_cell;
  size_t count;
};

std::string SvgHead(const PlanView& view, const Cells& rows, const Cells& columns, uint64_t most) {
  const size_t width = std::max<size_t>(columns.count * kCellPixels, 400);
  const size_t height = std::max<size_t>(rows.count * kCellPixels, 200);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{}\" y=\"16\">{}: the darkest cell is {}</text>\n"
      "<text x=\"{}\" y=\"34\">{} receivers, {} a cell</text>\n"
      "<text transform=\"translate(30 {}) rotate(-90)\">{} trainer ranks, {} a cell</text>\n",
      width + 2 * kMarginPixels, height + 2 * kMarginPixels, kMarginPixels, EscapedXml(view.job_id),
      FormatBytes(most), kMarginPixels, view.receivers.size(), columns.ranks_of_cell,
      kMarginPixels + height, view.full.sent.size(), rows.ranks_of_cell);
}

}  // namespace

Result<PlanView> PlanOfJob(const std::vector<v1::PlanReply>& replies) {
  if (replies.empty()) return InvalidArgumentError("no receiver has answered with a plan");
  const v1::PlanReply& first = replies.front();
  DWS_RETURN_IF_ERROR(CheckSizes(first));
  PlanView view{.job_id = first.job_id(),
                .parameters = first.elements(),
                .model_bytes = first.size_bytes(),
                .receivers = {},
                .full = {},
                .delta = {},
                .held = {}};
  view.full.sent.resize(first.trainer_ranks());
  view.delta.sent.resize(first.trainer_ranks());
  std::set<std::string_view> names;
  for (const v1::PlanReply& reply : replies) {
    DWS_RETURN_IF_ERROR(CheckSameJob(first, reply));
    if (!names.insert(reply.receiver_id()).second) {
      return InvalidArgumentError("receiver '{}' has answered twice: name each once",
                                  Printable(reply.receiver_id(), 60));
    }
    DWS_RETURN_IF_ERROR(AddReceiver(reply, view));
  }
  return view;
}

std::string FormatPlan(const PlanView& view) {
  const uint64_t all = view.all_to_each_bytes();
  std::vector<std::vector<std::string>> rows = {
      SpreadRow("full: sent by a trainer rank", view.full.sent),
      SpreadRow("received by a receiver", view.full.received),
      SpreadRow("received by an engine rank", view.held)};
  if (!view.delta.received.empty()) {
    rows.push_back(SpreadRow("delta: sent by a trainer rank", view.delta.sent));
    rows.push_back(SpreadRow("received by a receiver", view.delta.received));
  }
  return fmt::format("job {}: {}, P = {}\ntrainer: {} ranks; {} receivers, {} engine ranks\n\n",
                     Printable(view.job_id, 60), Parameters(view.parameters),
                     FormatBytes(view.model_bytes), view.full.sent.size(), view.receivers.size(),
                     view.held.size()) +
         FormatTable({{.title = "bytes", .left = true},
                      {.title = "min"},
                      {.title = "median"},
                      {.title = "max"},
                      {.title = "max/mean"},
                      {.title = "sum"}},
                     rows, 2) +
         fmt::format(
             "\n  {} slices; all weights to each engine rank (ep x P): {}, {} what is sent\n\n",
             view.slices, FormatBytes(all), FormatRatio(all, view.full.bytes())) +
         ReceiverTable(view);
}

std::string FormatPlanJson(const PlanView& view) {
  Json receivers = Json::array();
  for (const PlanReceiver& receiver : view.receivers) receivers.push_back(ReceiverJson(receiver));
  Json json = {{"job", view.job_id},
               {"parameters", view.parameters},
               {"model_bytes", view.model_bytes},
               {"trainer_ranks", view.full.sent.size()},
               {"engine_ranks", view.held.size()},
               {"all_to_each_bytes", view.all_to_each_bytes()},
               {"slices", view.slices},
               {"full", TrafficJson(view.full)},
               {"delta", nullptr},
               {"receivers", std::move(receivers)}};
  json["full"]["held"] = SpreadJson(view.held);
  if (!view.delta.received.empty()) json["delta"] = TrafficJson(view.delta);
  return json.dump(2) + "\n";
}

std::string FormatPlanSvg(const PlanView& view) {
  const Cells rows(view.full.sent.size());
  const Cells columns(view.receivers.size());
  std::vector<uint64_t> bytes(rows.count * columns.count, 0);
  for (size_t i = 0; i < view.receivers.size(); ++i) {
    for (size_t rank = 0; rank < view.full.sent.size(); ++rank) {
      const size_t row = rank / rows.ranks_of_cell;
      bytes[row * columns.count + i / columns.ranks_of_cell] += view.receivers[i].taken[rank];
    }
  }
  const uint64_t most = std::max<uint64_t>(1, *std::max_element(bytes.begin(), bytes.end()));
  std::string svg = SvgHead(view, rows, columns, most);
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
