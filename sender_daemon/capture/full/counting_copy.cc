#include "sender_daemon/capture/full/counting_copy.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace dws {
namespace {

// 16 bytes are a register of every x86-64, and of most other machines.
constexpr size_t kVectorBytes = 16;
// A counter for each lane; those of one byte must not wrap.
constexpr size_t kRunVectors = 255;

template <typename Lane>
uint64_t Copy(const std::byte* from, std::byte* to, size_t size) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = Lane;
  uint64_t changed = 0;
  size_t vectors = size / kVectorBytes;
  while (vectors > 0) {
    const size_t run = std::min(vectors, kRunVectors);
    Vector counts = {};
    for (size_t i = 0; i < run; ++i, from += kVectorBytes, to += kVectorBytes) {
      Vector after;
      Vector before;
      std::memcpy(&after, from, kVectorBytes);
      std::memcpy(&before, to, kVectorBytes);
      counts -= reinterpret_cast<Vector>(after != before);  // all ones where they differ
      std::memcpy(to, &after, kVectorBytes);
    }
    for (size_t lane = 0; lane < kVectorBytes / sizeof(Lane); ++lane) changed += counts[lane];
    vectors -= run;
  }
  for (size_t left = size % kVectorBytes; left > 0; left -= sizeof(Lane)) {
    Lane after;
    Lane before;
    std::memcpy(&after, from, sizeof(Lane));
    std::memcpy(&before, to, sizeof(Lane));
    changed += after != before ? 1 : 0;
    std::memcpy(to, &after, sizeof(Lane));
    from += sizeof(Lane);
    to += sizeof(Lane);
  }
  return changed;
}

}  // namespace

uint64_t CopyCounting(uint32_t element_bytes, ByteSpan from, MutableByteSpan to) {
  DWS_CHECK(from.size() == to.size() && from.size() % element_bytes == 0);
  switch (element_bytes) {
    case 1:
      return Copy<uint8_t>(from.data(), to.data(), from.size());
    case 2:
      return Copy<uint16_t>(from.data(), to.data(), from.size());
    case 4:
      return Copy<uint32_t>(from.data(), to.data(), from.size());
    default:
      DWS_CHECK(element_bytes == 8);
      return Copy<uint64_t>(from.data(), to.data(), from.size());
  }
}

}  // namespace dws
