#include "common/ledger/fence.h"

#include <array>
#include <string_view>

#include "common/model/digest/digest.h"

namespace dws {
namespace {

constexpr std::string_view kMagic = "DWSFENCE";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kCheckedBytes = 48;  // magic, version, kind, four words
constexpr size_t kFileBytes = kCheckedBytes + 16;

}  // namespace

std::vector<std::byte> EncodeFence(LedgerKind kind, const std::optional<Fence>& fence) {
  std::vector<std::byte> file(kFileBytes);
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  StoreLe(file.data() + 8, kFormatVersion);
  StoreLe(file.data() + 12, static_cast<uint32_t>(kind));
  const Fence words = fence.value_or(Fence());
  const std::array<uint64_t, 4> stored = {words.stream.incarnation, words.stream.id_hi,
                                          words.stream.id_lo, words.rank_epoch.value()};
  for (size_t i = 0; i < stored.size(); ++i) StoreLe(file.data() + 16 + 8 * i, stored[i]);
  const Digest digest = DigestBytes(ByteSpan(file).first(kCheckedBytes), 0);
  StoreLe(file.data() + kCheckedBytes, digest.lane0);
  StoreLe(file.data() + kCheckedBytes + 8, digest.lane1);
  return file;
}

Result<std::optional<Fence>> DecodeFence(LedgerKind kind, ByteSpan file) {
  if (file.size() != kFileBytes) {
    return DataLossError("expected {} bytes, found {}", kFileBytes, file.size());
  }
  const Digest found = DigestBytes(file.first(kCheckedBytes), 0);
  const Digest stored = {.lane0 = LoadLe<uint64_t>(file.data() + kCheckedBytes),
                         .lane1 = LoadLe<uint64_t>(file.data() + kCheckedBytes + 8)};
  if (AsText(file.first(kMagic.size())) != kMagic || found != stored) {
    return DataLossError("expected the digest {}, found {}", ToString(stored), ToString(found));
  }
  const auto version = LoadLe<uint32_t>(file.data() + 8);
  const auto of = LoadLe<uint32_t>(file.data() + 12);
  if (version != kFormatVersion || of != static_cast<uint32_t>(kind)) {
    return DataLossError("expected format {} and the fence of a {} (kind {}), found {} and kind {}",
                         kFormatVersion, ToString(kind), static_cast<uint32_t>(kind), version, of);
  }
  std::array<uint64_t, 4> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = LoadLe<uint64_t>(file.data() + 16 + 8 * i);
  }
  if (words[0] == 0) return std::optional<Fence>();  // incarnations begin at 1
  return std::optional(
      Fence{.stream = {words[0], words[1], words[2]}, .rank_epoch = RankEpoch(words[3])});
}

Result<std::optional<Fence>> FenceFile::Read() {
  says_.reset();
  // Allows one byte too many: DecodeFence refuses that size.
  Result<std::vector<std::byte>> file = file_system_.ReadFile(path_, kFileBytes + 1);
  if (absl::IsResourceExhausted(file.status())) {
    return DataLossError("{} is damaged: expected {} bytes, found more", path_, kFileBytes);
  }
  DWS_RETURN_IF_ERROR(file.status());
  Result<std::optional<Fence>> fence = DecodeFence(kind_, *file);
  if (!fence.ok()) return Annotate(fence.status(), path_ + " is damaged");
  says_ = *fence;
  return fence;
}

Status FenceFile::Keep(const std::optional<Fence>& fence) {
  if (says_.has_value() && *says_ == fence) return OkStatus();
  says_.reset();  // after an error the file may hold either fence
  DWS_RETURN_IF_ERROR(file_system_.ReplaceFile(path_, EncodeFence(kind_, fence)));
  says_ = fence;
  return OkStatus();
}

}  // namespace dws
