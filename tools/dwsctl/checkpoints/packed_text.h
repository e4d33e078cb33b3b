// What the commands that make delta objects say of one.
#pragma once

#include <string>

#include "tools/checkpoint/pack.h"

namespace dws::dwsctl {

// A line for people, or with `json` a JSON object on one.
std::string FormatPacked(const checkpoint::PackedObject& packed, const std::string& path,
                         bool json);

}  // namespace dws::dwsctl
