#include "common/model/class_table.h"

namespace dws {

ClassTableBytes PackClassTable(const ClassTable& table) {
  ClassTableBytes bytes{static_cast<std::byte>(table.hot_below),
                        static_cast<std::byte>(table.hot_scale)};
  for (size_t i = 0; i < table.threshold_count; ++i) {
    bytes[i + 2] = static_cast<std::byte>(table.thresholds[i]);
  }
  return bytes;
}

Result<ClassTable> UnpackClassTable(ByteSpan bytes) {
  if (bytes.size() < 2 || bytes.size() > kClassesMax + 1) {
    return DataLossError("class table: {} bytes, 2 to {} are possible", bytes.size(),
                         kClassesMax + 1);
  }
  ClassTable table{.threshold_count = static_cast<uint8_t>(bytes.size() - 2),
                   .hot_below = static_cast<uint8_t>(bytes[0]),
                   .hot_scale = static_cast<uint8_t>(bytes[1])};
  uint8_t last = 0;
  for (size_t i = 0; i < table.threshold_count; ++i) {
    const auto threshold = static_cast<uint8_t>(bytes[i + 2]);
    // Strictly ascending: each class is a range of exponents that is not empty.
    if (threshold <= last) {
      return DataLossError("class table: threshold {} after {}, expected them ascending", threshold,
                           last);
    }
    table.thresholds[i] = threshold;
    last = threshold;
  }
  return table;
}

}  // namespace dws
