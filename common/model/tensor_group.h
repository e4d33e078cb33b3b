// Groups of tensors whose names differ only in numbers: they change in similar ways. Densities are
// reported by group, because a model of any size has about ten groups.
#pragma once

#include <string>
#include <string_view>

namespace dws {

// The name with numbers replaced: "model.layers.*.mlp.up_proj.weight". A number is a part between
// dots that has digits only.
std::string GroupOf(std::string_view tensor_name);

}  // namespace dws
