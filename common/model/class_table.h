// How the elements of one slice are divided into classes by old magnitude (common/delta/FORMAT.md,
// "Mode 3: class-split"). An update has about the same size for every weight, so the smaller a
// weight, the more likely it changes. Senders make the table from earlier versions; the manifest
// carries it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws {

inline constexpr size_t kClassesMax = 8;

// An element's class is the number of thresholds that its magnitude byte (element.h) reaches.
struct ClassTable {
  std::array<uint8_t, kClassesMax - 1> thresholds{};  // strictly ascending, none 0
  uint8_t threshold_count = 0;                        // entries after these are 0
  // Each change of an element whose magnitude byte is below `hot_below` has its own size, as a Rice
  // code with parameter max(hot_scale - magnitude byte, 0).
  uint8_t hot_below = 0;
  uint8_t hot_scale = 0;

  size_t class_count() const { return size_t{threshold_count} + 1; }

  friend bool operator==(const ClassTable&, const ClassTable&) = default;
};

// The class of an element with this magnitude byte.
inline size_t ClassOf(const ClassTable& table, uint8_t magnitude) {
  size_t number = 0;
  for (size_t i = 0; i < table.threshold_count; ++i) {
    number += magnitude >= table.thresholds[i] ? 1 : 0;
  }
  return number;
}

// The bytes in the manifest: hot_below, hot_scale, the thresholds. Only the first ClassTableSize
// bytes are used.
using ClassTableBytes = std::array<std::byte, kClassesMax + 1>;
ClassTableBytes PackClassTable(const ClassTable& table);
inline size_t ClassTableSize(const ClassTable& table) { return size_t{table.threshold_count} + 2; }
// DATA_LOSS: too few or too many bytes, or thresholds that are not ascending.
Result<ClassTable> UnpackClassTable(ByteSpan bytes);

}  // namespace dws
