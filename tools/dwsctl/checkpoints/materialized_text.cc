#include "tools/dwsctl/checkpoints/materialized_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {

std::string FormatMaterialized(const checkpoint::MaterializedVersion& made, const std::string& path,
                               bool json) {
  if (!json) {
    return fmt::format("{}: version {}, {} of weights, {} tensors changed\n", Printable(path, 200),
                       made.version, FormatBytes(made.bytes), FormatCount(made.changed_tensors));
  }
  const nlohmann::json object = {{"path", path},
                                 {"version", made.version},
                                 {"changed_tensors", made.changed_tensors},
                                 {"bytes", made.bytes}};
  // Paths need not be UTF-8: replace bad bytes instead of throwing.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dws::dwsctl
