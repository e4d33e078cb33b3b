// The checksums in slime's version folders, in their form as lowercase hexadecimal text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/bytes.h"
#include "common/formats/slime_delta/digest/blake3.h"
#include "common/formats/slime_delta/digest/xxh3.h"

namespace dws::slime {

enum class ChecksumFormat : uint8_t {
  kXxh3,     // "xxh3-128": XXH3 of 128 bits, seed 0, canonical (what xxhsum -H2 prints)
  kBlake3,   // "blake3": 32 bytes
  kAdler32,  // "adler32": zlib's, as %08x
};

std::optional<ChecksumFormat> ChecksumFormatNamed(std::string_view name);
std::string_view NameOf(ChecksumFormat format);

std::string ChecksumText(ChecksumFormat format, ByteSpan bytes);

// The checksum of bytes that come in pieces. Lifecycle: Update any number of times, then Text.
// Threads: one at a time.
class Checksum {
 public:
  explicit Checksum(ChecksumFormat format);
  void Update(ByteSpan bytes);
  std::string Text() const;

 private:
  // Adler-32's is its value.
  std::variant<Xxh3, Blake3, uint32_t> state_;
};

// Returns whether `text` has the form of such a checksum.
bool IsChecksumText(ChecksumFormat format, std::string_view text);

}  // namespace dws::slime
