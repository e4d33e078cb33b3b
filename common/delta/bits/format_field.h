// One field of a format as found in bytes, for people who inspect them (dwsctl inspect).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dws {

// One field of encoded bytes, as dwsctl inspect shows it.
struct FormatField {
  uint64_t offset = 0;  // in the described bytes
  uint64_t size_bytes = 0;
  std::string_view name;  // as in FORMAT.md; static memory
  std::string value;
  std::string problem;  // why the value cannot be right; empty when it can be
};

}  // namespace dws
