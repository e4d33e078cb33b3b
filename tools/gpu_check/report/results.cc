// Each line is flushed at once: the process may die by the next check.
#include "tools/gpu_check/report/results.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

namespace dws::gpu_check {
namespace {

using Verdict = CheckResult::Verdict;
using Json = nlohmann::ordered_json;

constexpr std::pair<Verdict, std::string_view> kVerdicts[] = {
    {Verdict::kPassed, "passed"}, {Verdict::kFailed, "failed"}, {Verdict::kSkipped, "skipped"}};

std::string_view NameOf(Verdict verdict) {
  for (const auto& [each, name] : kVerdicts) {
    if (each == verdict) return name;
  }
  return "";
}

std::string TextOf(const Bar& bar) {
  return fmt::format("{} {:g}", bar.side == Bar::Side::kAtLeast ? ">=" : "<=", bar.limit);
}

Json JsonOf(const Figure& figure) {
  Json json = {{"value", figure.value}, {"unit", figure.unit}};
  if (figure.reference.has_value()) {
    json["reference"] = *figure.reference;
    json["of_what"] = figure.of_what;
    json["ratio"] = figure.ratio;
  }
  if (figure.bar.has_value()) json["bar"] = TextOf(*figure.bar);
  return json;
}

Figure FigureOf(const Json& json) {
  Figure figure{.value = json.at("value").get<double>(), .unit = json.at("unit")};
  if (json.contains("reference")) {
    figure.reference = json.at("reference").get<double>();
    figure.of_what = json.at("of_what");
    figure.ratio = json.at("ratio").get<double>();
  }
  if (json.contains("bar")) {
    const std::string bar = json.at("bar");
    figure.bar = Bar{.side = bar[0] == '>' ? Bar::Side::kAtLeast : Bar::Side::kAtMost,
                     .limit = std::stod(bar.substr(3))};
  }
  return figure;
}

}  // namespace

std::string ToLine(const CheckResult& result, bool fake_driver) {
  Json json = {
      {"section", result.section}, {"name", result.name}, {"status", NameOf(result.verdict)}};
  if (result.figure.has_value()) json["figure"] = JsonOf(*result.figure);
  for (const auto& [name, value] : result.facts) json["facts"][name] = value;
  if (!result.note.empty()) json["note"] = result.note;
  if (fake_driver) json["fake_driver"] = true;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<CheckResult> FromLine(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("section") || !json.contains("name") ||
      !json.contains("status")) {
    return InvalidArgumentError("expected a line of results, found '{}'", line);
  }
  CheckResult result{.section = json["section"], .name = json["name"]};
  for (const auto& [verdict, name] : kVerdicts) {
    if (json["status"] == name) result.verdict = verdict;
  }
  if (json.contains("figure")) result.figure = FigureOf(json["figure"]);
  if (json.contains("note")) result.note = json["note"];
  return result;
}

void Results::Add(CheckResult result) const {
  result.section = section_;
  fmt::print("{}\n", ToLine(result, fake_driver_));
  std::fflush(stdout);
}

void Results::Passed(std::string_view name, std::string_view note) {
  Add({.section = section_, .name = std::string(name), .note = std::string(note)});
}

void Results::Failed(std::string_view name, const Status& why) {
  Add({.section = section_,
       .name = std::string(name),
       .verdict = Verdict::kFailed,
       .note = ToString(why)});
}

void Results::Skipped(std::string_view name, std::string_view why) {
  Add({.section = section_,
       .name = std::string(name),
       .verdict = Verdict::kSkipped,
       .note = std::string(why)});
}

void Results::Checked(std::string_view name, const Status& status) {
  if (status.ok()) {
    Passed(name);
  } else {
    Failed(name, status);
  }
}

void Results::Measured(std::string_view name, const Figure& figure, std::string_view note) {
  CheckResult result{
      .section = section_, .name = std::string(name), .note = std::string(note), .figure = figure};
  if (figure.bar.has_value() && fake_driver_) {
    result.verdict = Verdict::kSkipped;
    result.note = "not compared with its bar: the driver is a fake";
  } else if (figure.bar.has_value() && !figure.bar->Keeps(figure.ratio)) {
    result.verdict = Verdict::kFailed;
  }
  Add(std::move(result));
}

void Results::Told(std::string_view name, std::vector<std::pair<std::string, std::string>> facts) {
  Add({.section = section_, .name = std::string(name), .facts = std::move(facts)});
}

Totals PrintTable(const std::vector<CheckResult>& results) {
  Totals totals;
  fmt::print(stderr, "\n{:<9}{:<84} {:<9}{:>11} {:<6}{:>11}{:>8}  {}\n", "section", "check",
             "status", "value", "unit", "reference", "ratio", "bar");
  for (const CheckResult& result : results) {
    (result.verdict == Verdict::kPassed   ? totals.passed
     : result.verdict == Verdict::kFailed ? totals.failed
                                          : totals.skipped)++;
    fmt::print(stderr, "{:<9}{:<84} {:<9}", result.section, result.name, NameOf(result.verdict));
    if (const std::optional<Figure>& figure = result.figure; figure.has_value()) {
      fmt::print(stderr, "{:>11.5g} {:<6}", figure->value, figure->unit);
      if (figure->reference.has_value()) {
        fmt::print(stderr, "{:>11.5g}{:>8.3f}  {}", *figure->reference, figure->ratio,
                   figure->bar.has_value() ? TextOf(*figure->bar) : "");
      }
    }
    fmt::print(stderr, "\n");
    if (!result.note.empty() && result.verdict != Verdict::kPassed) {
      fmt::print(stderr, "{:<9}  {}\n", "", result.note);
    }
  }
  return totals;
}

}  // namespace dws::gpu_check
