// One field of a format as it stands in bytes, for people who look at them (dwsctl inspect).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dws {

struct FormatField {
  uint64_t offset = 0;  // in the bytes that were described
  uint64_t size_bytes = 0;
  std::string_view name;  // what FORMAT.md calls it; lives forever
  std::string value;
  std::string problem;  // why it cannot be right; empty when it can
};

}  // namespace dws
