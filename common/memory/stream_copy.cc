#include "common/memory/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"

namespace dws {
namespace {

#if defined(__x86_64__)

constexpr size_t kLine = 64;

// `to` begins at a cache line; whole lines are copied.
DWS_TARGET_AVX2 void CopyLinesAvx2(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines * kLine; i += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  _mm_sfence();
}

DWS_TARGET_AVX512 void CopyLinesAvx512(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines * kLine; i += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
}

void CopyLines(std::byte* to, const std::byte* from, size_t lines) {
  switch (ActiveInstructionSet()) {
    case InstructionSet::kAvx512:
      return CopyLinesAvx512(to, from, lines);
    case InstructionSet::kAvx2:
      return CopyLinesAvx2(to, from, lines);
    case InstructionSet::kPortable:
      std::memcpy(to, from, lines * kLine);
  }
}

#endif

}  // namespace

void StreamCopy(MutableByteSpan to, ByteSpan from) {
  DWS_CHECK(to.size() == from.size());
#if defined(__x86_64__)
  const size_t front =
      std::min((kLine - reinterpret_cast<uintptr_t>(to.data()) % kLine) % kLine, to.size());
  const size_t lines = (to.size() - front) / kLine;
  const size_t copied = front + lines * kLine;
  if (front > 0) std::memcpy(to.data(), from.data(), front);
  if (lines > 0) CopyLines(to.data() + front, from.data() + front, lines);
  if (copied < to.size()) {
    std::memcpy(to.data() + copied, from.data() + copied, to.size() - copied);
  }
#else
  if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
#endif
}

}  // namespace dws
