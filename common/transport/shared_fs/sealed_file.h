// Small files that prove their own content: a message followed by its SHA-256, or by an HMAC if a
// key is configured (LAYOUT.md, "Sealed files"). A torn or changed file is always refused; with a
// key, only its holders can make a valid file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws::shared {

// Shared by all daemons of a job; empty: no key.
struct Key {
  std::vector<std::byte> bytes;

  bool given() const { return !bytes.empty(); }
};

// Reads the key from the file at `path`, without trailing line ends. INVALID_ARGUMENT: too short or
// too long. Other errors as FileSystem::ReadFile.
Result<Key> LoadKey(FileSystem& files, const std::string& path);

enum class SealedKind { kManifest, kReport };

std::vector<std::byte> Seal(SealedKind kind, std::string_view message, const Key& key);

// The message in `file`; `path` is for errors. DATA_LOSS: it is torn or damaged, or sealed with
// another key. UNIMPLEMENTED: a later format. FAILED_PRECONDITION: it has an HMAC and there is no
// key, or the other way round.
Result<std::string_view> Unseal(SealedKind kind, ByteSpan file, const Key& key,
                                const std::string& path);

}  // namespace dws::shared
