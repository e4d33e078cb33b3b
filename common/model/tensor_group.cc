#include "common/model/tensor_group.h"

namespace dws {

// "model.layers.7.mlp.up.weight" is of the group "model.layers.*.mlp.up.weight".
std::string GroupOf(std::string_view tensor_name) {
  std::string group;
  while (true) {
    const std::string_view part = tensor_name.substr(0, tensor_name.find('.'));
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    group += number ? "*" : part;
    if (part.size() == tensor_name.size()) return group;
    group += '.';
    tensor_name.remove_prefix(part.size() + 1);
  }
}

}  // namespace dws
