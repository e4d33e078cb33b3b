// What the commands that make checkpoints say of one.
#pragma once

#include <string>

#include "tools/checkpoint/materialize.h"

namespace dws::dwsctl {

// A line for people, or with `json` a JSON object on one.
std::string FormatMaterialized(const checkpoint::MaterializedVersion& made, const std::string& path,
                               bool json);

}  // namespace dws::dwsctl
