// The names of the steps are those of AWS's description: canonical request, string to sign, key.
#include "common/transport/s3/signature.h"

#include <algorithm>
#include <cctype>
#include <ctime>

#include "common/base/status.h"
#include "common/service/http/http_url.h"
#include "common/transport/shared_fs/sha256.h"

namespace dws::s3 {
namespace {

using shared::HmacSha256;
using shared::Sha256Digest;
using shared::Sha256Of;

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// "20130524T000000Z".
std::string Timestamp(UnixTime now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  std::string text(16, '\0');
  std::strftime(text.data(), text.size() + 1, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Sha256Digest SigningKey(const Credentials& credentials, std::string_view date, const Scope& scope) {
  const std::string first = "AWS4" + credentials.secret_access_key;
  Sha256Digest key = HmacSha256(AsBytes(first), AsBytes(date));
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")}) {
    key = HmacSha256(key, AsBytes(part));
  }
  return key;
}

}  // namespace

std::string QueryText(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = EscapeUrl(name, false);
    value = EscapeUrl(value, false);
  }
  std::ranges::sort(query);
  std::string text;
  for (const auto& [name, value] : query) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  }
  return text;
}

Headers Sign(const SignedRequest& request, const Credentials& credentials, const Scope& scope,
             UnixTime now) {
  const std::string timestamp = Timestamp(now);
  const std::string_view date = std::string_view(timestamp).substr(0, 8);
  const std::string body_hash = Hex(Sha256Of(request.body));
  Headers added = {{"x-amz-date", timestamp}, {"x-amz-content-sha256", body_hash}};
  if (!credentials.session_token.empty()) {
    added.emplace_back("x-amz-security-token", credentials.session_token);
  }

  Headers all = added;
  all.emplace_back("host", request.host);
  for (const auto& [name, value] : request.headers) all.emplace_back(Lower(name), value);
  std::ranges::sort(all);
  std::string names;
  std::string lines;
  for (const auto& [name, value] : all) {
    names += (names.empty() ? "" : ";") + name;
    lines += fmt::format("{}:{}\n", name, value);
  }

  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, EscapeUrl(request.path, true),
                  QueryText(request.query), lines, names, body_hash);
  const std::string scope_text =
      fmt::format("{}/{}/{}/aws4_request", date, scope.region, scope.service);
  const std::string to_sign = fmt::format("{}\n{}\n{}\n{}", kAlgorithm, timestamp, scope_text,
                                          Hex(Sha256Of(AsBytes(canonical))));
  const Sha256Digest key = SigningKey(credentials, date, scope);
  added.emplace_back("Authorization",
                     fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm,
                                 credentials.access_key_id, scope_text, names,
                                 Hex(HmacSha256(key, AsBytes(to_sign)))));
  return added;
}

}  // namespace dws::s3
