#include "common/service/http/http_url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "common/service/listen_address.h"

namespace dws {
namespace {

constexpr std::string_view kClear = "http://";
constexpr std::string_view kTls = "https://";
constexpr size_t kUrlBytesMax = 2048;

// Returns whether a character may be written unescaped in a request line and a header.
bool IsPlain(char c) { return c > ' ' && c < 0x7f; }
bool IsHostByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_';
}

bool IsV4(const std::string& host) {
  in_addr address = {};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}
bool IsV6(const std::string& host) {
  in6_addr address = {};
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool ParsePort(std::string_view text, uint16_t& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

// "host", "host:port", "[::1]:port".
bool ParseAuthority(std::string_view text, HttpUrl& url) {
  const bool bracketed = text.starts_with('[');
  const size_t host_end = bracketed ? text.find(']') : text.find(':');
  if (bracketed && host_end == std::string_view::npos) return false;
  url.host = bracketed ? text.substr(1, host_end - 1) : text.substr(0, host_end);
  std::string_view rest =
      host_end == std::string_view::npos ? "" : text.substr(host_end + (bracketed ? 1 : 0));
  if (bracketed ? !IsV6(url.host)
                : url.host.empty() || !std::all_of(url.host.begin(), url.host.end(), IsHostByte)) {
    return false;
  }
  url.port = url.tls ? 443 : 80;
  if (rest.empty()) return true;
  return rest.front() == ':' && ParsePort(rest.substr(1), url.port);
}

}  // namespace

bool HttpUrl::IsLoopback() const { return ListenAddress{.host = host, .port = port}.IsLoopback(); }

bool HttpUrl::IsAddress() const { return IsV4(host) || IsV6(host); }

std::string HttpUrl::HostPort() const {
  return ListenAddress{.host = host, .port = port}.ToString();
}

std::string HttpUrl::HostHeader() const {
  if (port != (tls ? 443 : 80)) return HostPort();
  return host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
}

std::string HttpUrl::ToString() const {
  return fmt::format("{}{}{}", tls ? kTls : kClear, HostPort(), path);
}

Result<HttpUrl> ParseHttpUrl(std::string_view text) {
  const auto refuse = [](std::string_view found) {
    return InvalidArgumentError(
        "expected the URL of an HTTP server, as http://127.0.0.1:30000 or https://engine:8000, "
        "found {}",
        found);
  };
  if (text.size() > kUrlBytesMax) return refuse(fmt::format("{} bytes", text.size()));
  // Not quoted, because it may contain a password.
  if (text.find('@') != std::string_view::npos) return refuse("one with a user (\"@\")");
  // As here, which may be a signature.
  if (text.find_first_of("?#") != std::string_view::npos) {
    return refuse("one with a query or a fragment");
  }
  const auto quoted = [text] { return fmt::format("\"{}\"", text); };
  HttpUrl url{.tls = text.starts_with(kTls)};
  if (!url.tls && !text.starts_with(kClear)) return refuse(quoted());
  if (!std::all_of(text.begin(), text.end(), IsPlain)) return refuse("one with unusual characters");
  std::string_view rest = text.substr(url.tls ? kTls.size() : kClear.size());
  const size_t slash = rest.find('/');
  if (!ParseAuthority(rest.substr(0, slash), url)) return refuse(quoted());
  if (slash != std::string_view::npos) url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  return url;
}

std::string EscapeUrl(std::string_view text, bool keep_slashes) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/');
    if (plain) {
      escaped += c;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

}  // namespace dws
