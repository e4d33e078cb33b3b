// The seeds of outbox_fuzz, safetensors_fuzz and slime_delta_fuzz. Used by make_seeds.
#pragma once

#include <string>

namespace dws::fuzz {

void AddFormats(const std::string& directory);

}  // namespace dws::fuzz
