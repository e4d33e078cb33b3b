// Named limits of the memory and files that receivers of one host share. They are kept apart from
// limits.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace dws::limits {

inline constexpr uint64_t kHostShareBytesMin = uint64_t{1} << 20;
inline constexpr uint64_t kHostShareBytesDefault = uint64_t{4} << 30;
inline constexpr size_t kHostShareVersionsMax = 2;              // of one stream; older ones go
inline constexpr std::chrono::minutes kHostShareAgeMax{10};     // of a file; older ones go
inline constexpr std::chrono::milliseconds kHostSharePoll{10};  // while another receiver fetches
inline constexpr std::chrono::seconds kHostShareWaitMax{60};    // for that; then all fetch
inline constexpr uint64_t kHostSharePieceBytes = uint64_t{1} << 20;  // read or written at once

}  // namespace dws::limits
