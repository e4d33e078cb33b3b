// Secrets are taken out when the report is written: a part may have been added before a secret was
// learned.
#include "tools/dwsctl/report/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace dws::dwsctl {

void Report::Add(const std::string& name, Result<std::string> text) {
  if (!text.ok()) {
    missing_.push_back({name, std::string(Message(text.status()))});
    return;
  }
  if (text->size() > kPartBytesMax) {
    const size_t size = text->size();
    text->resize(kPartBytesMax);
    *text += fmt::format("\n[{} of {} bytes]\n", kPartBytesMax, size);
  }
  parts_.push_back({name, *std::move(text)});
}

std::vector<Report::Part> Report::Cleaned() const {
  std::vector<Part> cleaned;
  for (const Part& part : parts_) cleaned.push_back({part.name, redactor_.Clean(part.text)});
  cleaned.push_back({"summary.txt", Summary()});
  return cleaned;
}

std::string Report::Summary() const {
  std::string text;
  for (const Part& part : parts_)
    text += fmt::format("{:<16} {} bytes\n", part.name, part.text.size());
  for (const Missing& missing : missing_) {
    text += fmt::format("{:<16} missing: {}\n", missing.name, redactor_.Clean(missing.why));
  }
  return text;
}

std::string Report::SummaryJson(const std::string& path) const {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const Part& part : parts_) {
    parts.push_back({{"name", part.name}, {"bytes", part.text.size()}});
  }
  for (const Missing& missing : missing_) {
    parts.push_back({{"name", missing.name}, {"error", redactor_.Clean(missing.why)}});
  }
  return nlohmann::ordered_json({{"path", path}, {"parts", parts}}).dump() + "\n";
}

}  // namespace dws::dwsctl
