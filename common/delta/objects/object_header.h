// The header of a delta object: 64 bytes that say how much to read next (FORMAT.md, "Object").
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/bits/format_field.h"

namespace dws {

// The fixed part at the begin of a delta object.
struct ObjectHeader {
  uint64_t manifest_bytes = 0;  // as stored (compressed)
  uint64_t frames_bytes = 0;
  uint64_t manifest_raw_bytes = 0;  // before compression
  uint64_t manifest_checksum = 0;   // of the stored bytes
  bool manifest_compressed = false;
  uint64_t total_bytes() const;
};
inline constexpr size_t kObjectHeaderBytes = 64;

// The eight bytes that every object begins with.
ByteSpan ObjectMagic();

// Writes kObjectHeaderBytes to `to`.
void StoreObjectHeader(const ObjectHeader& header, std::byte* to);

// DATA_LOSS: damaged or truncated; UNIMPLEMENTED: a format version this build does not know.
Result<ObjectHeader> ParseObjectHeader(ByteSpan bytes);

// The fields in the first kObjectHeaderBytes (CHECK), without any check: for looking at damage.
ObjectHeader LoadObjectHeader(ByteSpan bytes);

// Describes the fields of a sound or damaged header, as far as `bytes` goes.
std::vector<FormatField> DescribeObjectHeader(ByteSpan bytes);

}  // namespace dws
