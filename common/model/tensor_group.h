// Groups of tensors that behave alike: those of a model whose names differ in numbers only. What is
// said of densities is said of groups: a model has some ten of them, whatever its size.
#pragma once

#include <string>
#include <string_view>

namespace dws {

// The name with numbers replaced: "model.layers.*.mlp.up_proj.weight". A number is a part between
// dots that has digits only.
std::string GroupOf(std::string_view tensor_name);

}  // namespace dws
