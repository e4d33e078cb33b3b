// One incarnation of a trainer. Incarnations order the streams of a job; the random id
// distinguishes two streams that claim the same incarnation.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <string>

namespace dws {

// Names one incarnation of the trainer in its job.
struct StreamId {
  uint64_t incarnation = 0;
  uint64_t id_hi = 0;
  uint64_t id_lo = 0;

  friend auto operator<=>(const StreamId&, const StreamId&) = default;
};

// "7:0123456789abcdef0123456789abcdef"
inline std::string ToString(const StreamId& stream) {
  return fmt::format("{}:{:016x}{:016x}", stream.incarnation, stream.id_hi, stream.id_lo);
}

}  // namespace dws
