#include "tools/dwsctl/checkpoints/packed_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {

std::string FormatPacked(const checkpoint::PackedObject& packed, const std::string& path,
                         bool json) {
  if (!json) {
    return fmt::format("{}: version {} to {}, {} of elements in {} tensors, {} ({} of full)\n",
                       Printable(path, 200), packed.base_version, packed.version,
                       FormatShare(packed.changed_elements, packed.elements),
                       FormatCount(packed.changed_tensors), FormatBytes(packed.object_bytes),
                       FormatShare(packed.object_bytes, packed.model_bytes));
  }
  const nlohmann::json object = {{"path", path},
                                 {"base_version", packed.base_version},
                                 {"version", packed.version},
                                 {"changed_tensors", packed.changed_tensors},
                                 {"changed", packed.changed_elements},
                                 {"elements", packed.elements},
                                 {"full_bytes", packed.model_bytes},
                                 {"object_bytes", packed.object_bytes}};
  // Paths need not be UTF-8: replace bad bytes instead of throwing.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dws::dwsctl
