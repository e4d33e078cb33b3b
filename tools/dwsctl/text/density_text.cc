// The groups of tensors in a sender's status in which nearly every element changes. Such a group
// can make up most of a version's size, so it is shown by name.
#include <fmt/format.h>

#include <vector>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/status_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kGroupColumns = 40;
constexpr size_t kIndent = 2;

}  // namespace

std::string FormatDensity(const v1::DensityStatus& density) {
  std::string text =
      fmt::format("{} of {} groups of tensors, {} of the newest version", density.dense_groups(),
                  density.groups(), FormatBytes(density.dense_bytes()));
  if (density.version_dense()) {
    text += ", which is dense as a whole";
  }
  return text;
}

std::string FormatDenseGroups(const v1::DensityStatus& density) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::DenseGroup& group : density.worst()) {
    rows.push_back({PrintableEnd(group.name(), kGroupColumns),
                    FormatShare(group.changed(), group.elements()), FormatBytes(group.wire_bytes()),
                    FormatShare(group.wire_bytes(), group.full_bytes())});
  }
  std::string text = FormatTable({{.title = "dense group", .left = true},
                                  {.title = "density"},
                                  {.title = "wire"},
                                  {.title = "of full"}},
                                 rows, kIndent);
  const auto shown = static_cast<uint32_t>(density.worst_size());
  if (density.dense_groups() > shown) {
    text += fmt::format("{:{}}and {} more\n", "", kIndent, density.dense_groups() - shown);
  }
  return text;
}

}  // namespace dws::dwsctl
