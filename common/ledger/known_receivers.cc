#include "common/ledger/known_receivers.h"

#include <charconv>
#include <optional>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kHead = "DWSKNOWN 1\n";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr int kHexBase = 16;

std::string Sum(std::string_view text) {
  const Digest digest = DigestBytes(AsBytes(text), 0);
  return fmt::format("sum {}\n", ToString(digest));
}

// Hexadecimal, because an id may contain any bytes.
std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kHexDigits[byte / kHexBase];
    text += kHexDigits[byte % kHexBase];
  }
  return text;
}

std::optional<std::string> FromHex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const size_t high = kHexDigits.find(text[i]);
    const size_t low = kHexDigits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(high * kHexBase + low);
  }
  return bytes;
}

Status Damaged(std::string_view why) {
  return DataLossError("the file of known receivers is damaged: {}", why);
}

// One line without its end: "1 1700000000 726f6c6c6f75742d30".
Result<KnownReceiver> ParseLine(std::string_view line) {
  if (line.size() < 4 || (line[0] != '0' && line[0] != '1') || line[1] != ' ') {
    return Damaged("a line does not begin with 0 or 1");
  }
  KnownReceiver receiver{.id = {}, .present = line[0] == '1'};
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + 2, end, receiver.last_seen_unix_seconds);
  if (error != std::errc() || rest == end || *rest != ' ') return Damaged("a line has no time");
  auto id = FromHex(line.substr(static_cast<size_t>(rest - line.data()) + 1));
  if (!id.has_value() || id->empty() || id->size() > limits::kIdBytesMax) {
    return Damaged("a line has no receiver id");
  }
  receiver.id = *std::move(id);
  return receiver;
}

std::string PathIn(const std::string& state_folder) { return state_folder + "/receivers.known"; }

}  // namespace

std::string FormatKnownReceivers(std::span<const KnownReceiver> receivers) {
  DWS_CHECK(receivers.size() <= limits::kReceiversMax);
  std::string text(kHead);
  for (const KnownReceiver& receiver : receivers) {
    text += fmt::format("{} {} {}\n", receiver.present ? 1 : 0, receiver.last_seen_unix_seconds,
                        Hex(receiver.id));
  }
  return text + Sum(text);
}

Result<std::vector<KnownReceiver>> ParseKnownReceivers(std::string_view text) {
  if (!text.starts_with(kHead)) return Damaged("it does not begin with 'DWSKNOWN 1'");
  const size_t sum = text.rfind("sum ");
  if (sum == std::string_view::npos || text.substr(sum) != Sum(text.substr(0, sum))) {
    return Damaged("its checksum is wrong");
  }
  std::vector<KnownReceiver> receivers;
  for (std::string_view rest = text.substr(kHead.size(), sum - kHead.size()); !rest.empty();) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos || receivers.size() == limits::kReceiversMax) {
      return Damaged("it has an extra line, or a line without an end");
    }
    DWS_ASSIGN_OR_RETURN(KnownReceiver receiver, ParseLine(rest.substr(0, end)));
    receivers.push_back(std::move(receiver));
    rest.remove_prefix(end + 1);
  }
  return receivers;
}

Result<std::vector<KnownReceiver>> LoadKnownReceivers(FileSystem& files,
                                                      const std::string& state_folder) {
  const std::string path = PathIn(state_folder);
  const auto bytes = files.ReadFile(path, limits::kKnownReceiversBytesMax);
  if (absl::IsNotFound(bytes.status())) return std::vector<KnownReceiver>();
  if (!bytes.ok()) return bytes.status();
  auto receivers = ParseKnownReceivers(AsText(*bytes));
  if (!receivers.ok()) return Annotate(receivers.status(), path);
  return receivers;
}

Status SaveKnownReceivers(FileSystem& files, const std::string& state_folder,
                          std::span<const KnownReceiver> receivers) {
  const std::string text = FormatKnownReceivers(receivers);
  return files.ReplaceFile(PathIn(state_folder), AsBytes(text));
}

}  // namespace dws
