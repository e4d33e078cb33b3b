// The result of a command that makes a checkpoint.
#pragma once

#include <string>

#include "tools/checkpoint/materialize.h"

namespace dws::dwsctl {

// One line: text for people, or with `json` a JSON object.
std::string FormatMaterialized(const checkpoint::MaterializedVersion& made, const std::string& path,
                               bool json);

}  // namespace dws::dwsctl
