// The result of a command that makes a delta object.
#pragma once

#include <string>

#include "tools/checkpoint/pack.h"

namespace dws::dwsctl {

// One line: text for people, or with `json` a JSON object.
std::string FormatPacked(const checkpoint::PackedObject& packed, const std::string& path,
                         bool json);

}  // namespace dws::dwsctl
