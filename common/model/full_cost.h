// What a delta takes beside a full version. The sender decides by it, `dwsctl estimate` predicts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dws {

// A part in its whole; 0 in nothing.
inline double Share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(whole, 1));
}

// A delta with this share of the weights' bytes, or more, is not worth its time on any link.
inline constexpr double kFullShare = 7.0 / 8;

// Links at least as fast are no longer what takes the time: what dense steps save is sent in less
// time than a core decodes them in (docs/design-notes.md).
inline constexpr uint64_t kDirectBytesPerSecond = uint64_t{256} << 20;

// The time of a delta over such links, from capture to commit, in that of a full version. There
// memory and processors take it. By measurement a changed element, to encode, decode, stage and
// commit it, takes as long as five bytes of a full version, and a byte of the delta, which tells
// how far elements moved, as long as six. `delta_share`: its bytes in those of the weights.
inline double DeltaTime(double delta_share, uint64_t changed_elements, uint64_t weights_bytes) {
  constexpr double kBytesOfChange = 5;
  constexpr double kBytesOfDeltaByte = 6;
  return kBytesOfDeltaByte * delta_share + kBytesOfChange * static_cast<double>(changed_elements) /
                                               static_cast<double>(weights_bytes);
}

}  // namespace dws
