// The version of the wire protocol. A peer with another major is refused, and the message names
// both versions. Minors interoperate: unknown fields and messages are ignored.
#pragma once

#include <cstdint>

namespace dws {

inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 1;
// From this minor version on, receivers follow a layout that is cut finer inside a stream, and
// senders cut it.
inline constexpr uint32_t kRefinementMinor = 1;

}  // namespace dws
