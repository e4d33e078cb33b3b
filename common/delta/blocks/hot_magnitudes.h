// Sizes of steps of small old elements (FORMAT.md, "Mode 3: class-split", planes 5 to 7). Below
// some magnitude a step is many units in the last place, and their number doubles each time the
// element halves. So the old element gives the Rice parameter, and every change of such an element
// has its size coded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/delta/bits/bit_stream.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws {

// The hot changes of a block.
struct HotMagnitudes {
  static constexpr uint32_t kWidthMax = 15;

  std::vector<uint64_t> mask;     // a bit for each change of the block
  std::vector<uint16_t> changes;  // the numbers of the hot ones
  std::vector<uint8_t> widths;    // the Rice parameter of each
  std::vector<uint64_t> values;   // |step| - 1
  uint32_t escape_width = 0;
  uint64_t bits = 0;
};

// The largest Rice parameter of an element of `element_bits` bits.
inline uint32_t HotWidthMax(uint32_t element_bits) {
  return std::min(HotMagnitudes::kWidthMax, element_bits - 1);
}

// The Rice parameter of a hot element of `element_bits` bits with this magnitude byte.
inline uint8_t HotWidth(const ClassTable& table, uint8_t magnitude, uint32_t element_bits) {
  const int width = int{table.hot_scale} - int{magnitude};
  const int width_max = static_cast<int>(HotWidthMax(element_bits));
  return static_cast<uint8_t>(width < 0 ? 0 : std::min(width, width_max));
}

// Fills `magnitude_bytes` from the elements of `block` at `positions`.
void LoadMagnitudeBytes(DType dtype, ByteSpan block, std::span<const uint16_t> positions,
                        std::vector<uint8_t>& magnitude_bytes);

// Finds the hot changes among changes whose old elements have these magnitude bytes: fills mask,
// changes and widths.
void FindHotChanges(const ClassTable& table, std::span<const uint8_t> magnitude_bytes,
                    uint32_t element_bits, HotMagnitudes& hot);

// Fills escape_width and bits from values and widths.
void PlanHotMagnitudes(HotMagnitudes& hot);
void WriteHotMagnitudes(const HotMagnitudes& hot, BitWriter& writer);

// Reads a value for each of hot.widths from bit `begin` on, with hot.escape_width. `scratch` has as
// many entries. Returns the end of the last plane; nullopt when a plane is cut off, or has bits
// that no encoder writes.
std::optional<uint64_t> ReadHotMagnitudes(ByteSpan payload, uint64_t begin,
                                          std::span<uint64_t> scratch, HotMagnitudes& hot);

}  // namespace dws
