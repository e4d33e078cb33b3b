// The checksums in slime's version folders, in their form as lowercase hexadecimal text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/bytes.h"

namespace dws::slime {

enum class ChecksumFormat : uint8_t {
  kXxh3,     // "xxh3-128": XXH3 of 128 bits, seed 0, canonical (what xxhsum -H2 prints)
  kBlake3,   // "blake3": 32 bytes
  kAdler32,  // "adler32": zlib's, as %08x
};

std::optional<ChecksumFormat> ChecksumFormatNamed(std::string_view name);
std::string_view NameOf(ChecksumFormat format);

std::string ChecksumText(ChecksumFormat format, ByteSpan bytes);

// Whether `text` has the form of such a checksum.
bool IsChecksumText(ChecksumFormat format, std::string_view text);

}  // namespace dws::slime
