#include "common/service/security/identity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kScheme = "dws://";
constexpr std::array kRoles = {Role::kPublish, Role::kTrain, Role::kReceive, Role::kOperate};

// RFC 3986's "unreserved": characters that no segment needs to escape.
bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

// A segment may also have "sub-delims", ':' and '@' unescaped.
bool IsSegmentCharacter(char c) {
  return IsUnreserved(c) || std::string_view("!$&'()*+,;=:@").find(c) != std::string_view::npos;
}

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (IsUnreserved(c)) {
      escaped += c;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

// nullopt: empty, too long, an invalid escape, or a character that is not allowed.
std::optional<std::string> Unescape(std::string_view segment) {
  std::string text;
  for (size_t i = 0; i < segment.size(); ++i) {
    char c = segment[i];
    if (c == '%') {
      if (segment.size() - i < 3) return std::nullopt;
      unsigned value = 0;
      const char* const begin = segment.data() + i + 1;
      if (std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2) return std::nullopt;
      c = static_cast<char>(value);
      if (value < 0x20 || value == 0x7f) return std::nullopt;
      i += 2;
    } else if (!IsSegmentCharacter(c)) {
      return std::nullopt;
    }
    text += c;
  }
  if (text.empty() || text.size() > limits::kIdBytesMax) return std::nullopt;
  return text;
}

bool IsRank(std::string_view text) {
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc() && end == text.data() + text.size() &&
         (text.size() == 1 || text.front() != '0');
}

}  // namespace

std::string_view ToString(Role role) {
  switch (role) {
    case Role::kPublish:
      return "publish";
    case Role::kTrain:
      return "train";
    case Role::kReceive:
      return "receive";
    case Role::kOperate:
      return "operate";
  }
  return "";
}

Identity SenderIdentity(std::string job_id, uint32_t trainer_rank, Role role) {
  return {.job_id = std::move(job_id), .role = role, .name = std::to_string(trainer_rank)};
}

Identity ReceiverIdentity(std::string job_id, std::string receiver_id) {
  return {.job_id = std::move(job_id), .role = Role::kReceive, .name = std::move(receiver_id)};
}

std::string ToUri(const Identity& identity) {
  return fmt::format("{}{}/{}/{}", kScheme, Escape(identity.job_id), ToString(identity.role),
                     Escape(identity.name));
}

bool IsIdentityUri(std::string_view uri) { return uri.starts_with(kScheme); }

Result<Identity> ParseIdentity(std::string_view uri) {
  const auto refuse = [uri](std::string_view what) {
    return InvalidArgumentError(
        "expected an identity, as dws://JOB/receive/ID, dws://JOB/publish/RANK, "
        "dws://JOB/train/RANK or dws://JOB/operate/NAME, found \"{}\": {}",
        uri.substr(0, 4 * limits::kIdBytesMax), what);
  };
  if (!IsIdentityUri(uri)) return refuse("another scheme");
  const std::string_view path = uri.substr(kScheme.size());
  if (std::count(path.begin(), path.end(), '/') != 2) return refuse("it does not have three parts");
  const size_t first = path.find('/');
  const size_t second = path.find('/', first + 1);

  const auto job_id = Unescape(path.substr(0, first));
  const auto name = Unescape(path.substr(second + 1));
  if (!job_id.has_value() || !name.has_value()) {
    return refuse("a part is empty, too long, or wrongly escaped");
  }
  const std::string_view word = path.substr(first + 1, second - first - 1);
  const auto role = std::find_if(kRoles.begin(), kRoles.end(),
                                 [word](Role candidate) { return ToString(candidate) == word; });
  if (role == kRoles.end()) return refuse("an unknown role");
  const bool of_rank = *role == Role::kPublish || *role == Role::kTrain;
  if (of_rank && !IsRank(*name)) return refuse("the rank is not a number");
  return Identity{.job_id = *job_id, .role = *role, .name = *name};
}

}  // namespace dws
