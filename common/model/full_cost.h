// The cost of a delta compared with that of a full version. The sender decides by it, and `dwsctl
// estimate` predicts with it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dws {

// Returns the share of a part in its whole; 0 if the whole is 0.
inline double Share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(whole, 1));
}

// A delta with this share of the weights' bytes, or more, is not worth its time on any link.
inline constexpr double kFullShare = 7.0 / 8;

// Links at least as fast are no longer what takes the time: what dense steps save is sent in less
// time than a core decodes them in (docs/design-notes.md).
inline constexpr uint64_t kDirectBytesPerSecond = uint64_t{256} << 20;

// Returns the time that a delta takes from capture to commit, relative to that of a full version,
// over links on which memory and processors limit the speed. Measured: encoding, decoding, staging
// and committing a changed element takes as long as five bytes of a full version, and each byte of
// the delta, which tells how far elements moved, as long as six. `delta_share`: the delta's bytes
// divided by those of the weights.
inline double DeltaTime(double delta_share, uint64_t changed_elements, uint64_t weights_bytes) {
  constexpr double kBytesOfChange = 5;
  constexpr double kBytesOfDeltaByte = 6;
  return kBytesOfDeltaByte * delta_share + kBytesOfChange * static_cast<double>(changed_elements) /
                                               static_cast<double>(weights_bytes);
}

}  // namespace dws
