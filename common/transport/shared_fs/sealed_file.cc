#include "common/transport/shared_fs/sealed_file.h"

#include <algorithm>

#include "common/model/limits.h"
#include "common/transport/shared_fs/sha256.h"

namespace dws::shared {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kHeadBytes = 24;
constexpr uint32_t kFormatVersion = 1;
constexpr uint32_t kSha256Seal = 1;
constexpr uint32_t kHmacSeal = 2;

std::string_view Magic(SealedKind kind) {
  return kind == SealedKind::kManifest ? "DWSSHMAN" : "DWSSHREP";
}

std::string_view NameOf(SealedKind kind) {
  return kind == SealedKind::kManifest ? "manifest" : "report";
}

Sha256Digest SealOf(ByteSpan bytes, const Key& key) {
  return key.given() ? HmacSha256(key.bytes, bytes) : Sha256Of(bytes);
}

}  // namespace

Result<Key> LoadKey(FileSystem& files, const std::string& path) {
  DWS_ASSIGN_OR_RETURN(Key key, [&]() -> Result<Key> {
    DWS_ASSIGN_OR_RETURN(auto bytes, files.ReadFile(path, limits::kSharedKeyBytesMax));
    return Key{.bytes = std::move(bytes)};
  }());
  while (!key.bytes.empty() &&
         (key.bytes.back() == std::byte{'\n'} || key.bytes.back() == std::byte{'\r'})) {
    key.bytes.pop_back();
  }
  if (key.bytes.size() < limits::kSharedKeyBytesMin) {
    return InvalidArgumentError(
        "the key in {} has {} bytes, expected at least {}: make one with `openssl rand -hex 32`",
        path, key.bytes.size(), limits::kSharedKeyBytesMin);
  }
  return key;
}

std::vector<std::byte> Seal(SealedKind kind, std::string_view message, const Key& key) {
  const ByteSpan bytes = AsBytes(message);
  std::vector<std::byte> file(kHeadBytes + bytes.size());
  const ByteSpan magic = AsBytes(Magic(kind));
  std::copy(magic.begin(), magic.end(), file.begin());
  StoreLe<uint32_t>(file.data() + 8, kFormatVersion);
  StoreLe<uint32_t>(file.data() + 12, key.given() ? kHmacSeal : kSha256Seal);
  StoreLe<uint64_t>(file.data() + 16, message.size());
  std::copy(bytes.begin(), bytes.end(), file.begin() + kHeadBytes);
  const Sha256Digest seal = SealOf(file, key);
  file.resize(file.size() + seal.size());
  std::copy(seal.begin(), seal.end(), file.end() - static_cast<std::ptrdiff_t>(seal.size()));
  return file;
}

Result<std::string_view> Unseal(SealedKind kind, ByteSpan file, const Key& key,
                                const std::string& path) {
  if (file.size() < kHeadBytes || AsText(file.first(kMagicBytes)) != Magic(kind)) {
    return DataLossError("{} is not a {}: expected it to begin with {}, it has {} bytes", path,
                         NameOf(kind), Magic(kind), file.size());
  }
  if (const auto format = LoadLe<uint32_t>(file.data() + 8); format != kFormatVersion) {
    return UnimplementedError("{}: expected format {}, found {}; upgrade the older daemon", path,
                              kFormatVersion, format);
  }
  const auto seal = LoadLe<uint32_t>(file.data() + 12);
  const auto message_bytes = LoadLe<uint64_t>(file.data() + 16);
  constexpr size_t kAround = kHeadBytes + sizeof(Sha256Digest);
  if (file.size() < kAround || message_bytes != file.size() - kAround) {
    return DataLossError("{} has {} bytes, its head says {} + {}", path, file.size(), kAround,
                         message_bytes);
  }
  // Compared before the seal itself: a missing or unexpected key is a configuration mistake, and
  // not damage.
  if (key.given() && seal != kHmacSeal) {
    return FailedPreconditionError(
        "{} is not signed, and this daemon has a key: give the other side --shared-dir-key", path);
  }
  if (!key.given() && seal != kSha256Seal) {
    return FailedPreconditionError(
        "{} is signed, and this daemon has no key to check it with: give it --shared-dir-key",
        path);
  }
  Sha256Digest found;
  const ByteSpan behind = file.last(found.size());
  std::copy(behind.begin(), behind.end(), found.begin());
  if (!SameDigest(found, SealOf(file.first(file.size() - found.size()), key))) {
    return DataLossError("{}: the {} at its end does not match its content: it is damaged{}", path,
                         key.given() ? "signature" : "SHA-256",
                         key.given() ? ", or was signed with another key" : "");
  }
  return AsText(file.subspan(kHeadBytes, message_bytes));
}

}  // namespace dws::shared
