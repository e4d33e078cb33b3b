#include "common/transport/shared_fs/names.h"

#include <charconv>

#include "common/base/bytes.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"

namespace dws::shared {
namespace {

constexpr size_t kNameBytesMax = 250;  // 255, less what ".tmp" takes
constexpr size_t kDigits = 20;
constexpr size_t kHalfIdDigits = 16;
constexpr std::string_view kTemporaryEnding = ".tmp";
constexpr std::string_view kStreamPrefix = "stream-";
constexpr std::string_view kVersionPrefix = "v";
constexpr std::string_view kWelcomePrefix = "welcome-";

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Takes exactly `digits` digits of `base` from the front of `text`.
std::optional<uint64_t> TakeNumber(std::string_view& text, size_t digits, int base) {
  if (text.size() < digits) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, value, base);
  if (error != std::errc() || end != text.data() + digits) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

Result<std::string> EscapeId(std::string_view id) {
  std::string name;
  const size_t temporary =
      id.ends_with(kTemporaryEnding) ? id.size() - kTemporaryEnding.size() : std::string_view::npos;
  for (size_t i = 0; i < id.size(); ++i) {
    const char c = id[i];
    if (IsPlain(c) && !(c == '.' && (i == 0 || i == temporary))) {
      name += c;
    } else {
      name += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  if (name.empty() || name.size() > kNameBytesMax) {
    return InvalidArgumentError(
        "the id '{}' has {} bytes as a file's name, expected 1 to {}: take a shorter one", id,
        name.size(), kNameBytesMax);
  }
  return name;
}

// A name has patterns, and is too long for a file's.
std::string RootOfView(const std::string& root, const std::string& view) {
  if (view.empty()) return root;
  return fmt::format("{}/{}{}", root, kViewPrefix, ToString(DigestBytes(AsBytes(view), 0)));
}

std::string RankName(TrainerRank rank) { return fmt::format("rank-{:05}", rank.value()); }

std::string StreamName(const StreamId& stream) {
  return fmt::format("{}{:020}-{:016x}{:016x}", kStreamPrefix, stream.incarnation, stream.id_hi,
                     stream.id_lo);
}

std::string VersionFolderName(VersionName name) {
  return fmt::format("{}{:020}-{:020}", kVersionPrefix, name.version.value(), name.epoch.value());
}

std::string WelcomeName(RankEpoch epoch) {
  return fmt::format("{}{:020}", kWelcomePrefix, epoch.value());
}

std::optional<StreamId> ParseStreamName(std::string_view name) {
  if (!TakePrefix(name, kStreamPrefix)) return std::nullopt;
  const auto incarnation = TakeNumber(name, kDigits, 10);
  if (!incarnation.has_value() || !TakePrefix(name, "-")) return std::nullopt;
  const auto hi = TakeNumber(name, kHalfIdDigits, 16);
  const auto lo = TakeNumber(name, kHalfIdDigits, 16);
  if (!hi.has_value() || !lo.has_value() || !name.empty()) return std::nullopt;
  return StreamId{.incarnation = *incarnation, .id_hi = *hi, .id_lo = *lo};
}

std::optional<VersionName> ParseVersionFolderName(std::string_view name) {
  if (!TakePrefix(name, kVersionPrefix)) return std::nullopt;
  const auto version = TakeNumber(name, kDigits, 10);
  if (!version.has_value() || !TakePrefix(name, "-")) return std::nullopt;
  const auto epoch = TakeNumber(name, kDigits, 10);
  if (!epoch.has_value() || !name.empty()) return std::nullopt;
  return VersionName{.version = WeightVersion(*version), .epoch = RankEpoch(*epoch)};
}

std::optional<RankEpoch> ParseWelcomeName(std::string_view name) {
  if (!TakePrefix(name, kWelcomePrefix)) return std::nullopt;
  const auto epoch = TakeNumber(name, kDigits, 10);
  if (!epoch.has_value() || !name.empty()) return std::nullopt;
  return RankEpoch(*epoch);
}

}  // namespace dws::shared
