// The version of the wire protocol. A peer with another major is refused, and the message names
// both versions. Minors interoperate: each side ignores fields and messages that it does not know.
#pragma once

#include <cstdint>

namespace dws {

inline constexpr uint32_t kProtocolMajor = 2;
inline constexpr uint32_t kProtocolMinor = 0;

}  // namespace dws
