#include "tools/dwsctl/inspect/inspect_item.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNameColumns = 28;
constexpr size_t kFactColumns = 22;
constexpr size_t kProblemLinesMax = 6;

// Bits of payload per change, which measure how well the codec works.
std::string BitsPerChange(uint64_t size_bytes, uint64_t nnz) {
  if (nnz == 0) return "-";
  return fmt::format("{:.1f}", 8.0 * static_cast<double>(size_bytes) / static_cast<double>(nnz));
}

struct ToJson {
  Json operator()(const FileItem& file) const {
    return {{"item", "file"},
            {"path", file.path},
            {"kind", file.kind},
            {"size_bytes", file.size_bytes}};
  }
  Json operator()(const SectionItem& section) const {
    return {{"item", "section"},
            {"name", section.name},
            {"offset", section.offset},
            {"size_bytes", section.size_bytes},
            {"note", section.note}};
  }
  Json operator()(const FieldItem& field) const {
    return {{"item", "field"},
            {"offset", field.offset},
            {"offset_in", field.in_manifest ? "manifest" : "file"},
            {"size_bytes", field.size_bytes},
            {"name", field.name},
            {"value", field.value}};
  }
  Json operator()(const BlockItem& block) const {
    return {{"item", "block"},
            {"block", block.block},
            {"mode", block.mode},
            {"nnz", block.nnz},
            {"parameters", block.parameters},
            {"offset", block.offset},
            {"size_bytes", block.size_bytes}};
  }
  Json operator()(const OmissionItem& omission) const {
    return {{"item", "omission"}, {"what", omission.what}};
  }
  Json operator()(const ProblemItem& problem) const {
    return {{"item", "problem"}, {"offset", problem.offset}, {"message", problem.message}};
  }
  Json operator()(const SummaryItem& summary) const {
    Json facts = Json::object();
    for (const auto& [name, value] : summary.facts) facts[name] = value;
    return {{"item", "summary"}, {"problems", summary.problems}, {"facts", facts}};
  }
};

}  // namespace

std::string InspectText::Format(const InspectItem& item) {
  if (!std::holds_alternative<BlockItem>(item) && !std::holds_alternative<ProblemItem>(item)) {
    in_blocks_ = false;
  }
  return std::visit([this](const auto& one) { return (*this)(one); }, item);
}

std::string InspectText::operator()(const FileItem& file) {
  return fmt::format("{}: {}, {} bytes\n", Clean(file.path), file.kind, file.size_bytes);
}

std::string InspectText::operator()(const SectionItem& section) {
  std::string text =
      fmt::format("\n{}: at {}, {} bytes", Clean(section.name), section.offset, section.size_bytes);
  if (!section.note.empty()) text += "; " + Clean(section.note);
  return text + "\n";
}

std::string InspectText::operator()(const FieldItem& field) {
  const std::string offset = fmt::format("{}{}", field.in_manifest ? "+" : "", field.offset);
  const std::string head = fmt::format("  {:>8} {:>5}  {} ", offset, field.size_bytes,
                                       Padded(Clean(field.name), kNameColumns, true));
  const size_t left = columns_ > TextWidth(head) + 8 ? columns_ - TextWidth(head) : 8;
  return head + Printable(field.value, std::max<size_t>(left, 32)) + "\n";
}

std::string InspectText::operator()(const BlockItem& block) {
  std::string text;
  if (!in_blocks_) {
    text = fmt::format("  {:>8}  {:<11} {:>6}  {:>10} {:>7} {:>12}  {}\n", "block", "mode", "nnz",
                       "payload at", "bytes", "bits/change", "parameters");
  }
  in_blocks_ = true;
  return text + fmt::format("  {:>8}  {:<11} {:>6}  {:>10} {:>7} {:>12}  {}\n", block.block,
                            block.mode, block.nnz, block.offset, block.size_bytes,
                            BitsPerChange(block.size_bytes, block.nnz), block.parameters);
}

std::string InspectText::operator()(const OmissionItem& omission) {
  return fmt::format("  ... {}\n", Clean(omission.what));
}

std::string InspectText::operator()(const ProblemItem& problem) {
  const std::string head = fmt::format("  DAMAGE at {}: ", problem.offset);
  const size_t left = columns_ > head.size() + 30 ? columns_ - head.size() : 30;
  return head + Wrapped(problem.message, left, kProblemLinesMax, head.size()) + "\n";
}

std::string InspectText::operator()(const SummaryItem& summary) {
  std::string text = "\n";
  for (const auto& [name, value] : summary.facts) {
    text += fmt::format("{} {}\n", Padded(Clean(name), kFactColumns, true), Clean(value));
  }
  if (summary.problems == 0) return text + "sound, as far as can be checked without the weights\n";
  return text + fmt::format("DAMAGED: {} problem{}, above\n", summary.problems,
                            summary.problems == 1 ? "" : "s");
}

std::string FormatInspectJson(const InspectItem& item) {
  return std::visit(ToJson(), item).dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace dws::dwsctl
