#include "common/service/http/http_message.h"

#include <fmt/format.h>

namespace dws {
namespace {

std::string_view Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:  // a page may return any code
      return "Other";
  }
}

// The path of "/a?b" or "http://host/a?b"; empty when it is neither.
std::string_view Path(std::string_view target) {
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t slash = target.find('/', target.find("//") + 2);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (!target.starts_with('/')) return "";
  return target.substr(0, target.find('?'));
}

}  // namespace

HttpRequest ParseHttpRequest(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == 0 || last <= first + 1) return {.refusal = 400};
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!version.starts_with("HTTP/") || target.find(' ') != std::string_view::npos) {
    return {.refusal = 400};
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return {.refusal = 505};
  if (method != "GET" && method != "HEAD") return {.refusal = 405};
  const std::string_view path = Path(target);
  if (path.empty()) return {.refusal = 400};
  return {.head_only = method == "HEAD", .path = std::string(path)};
}

std::string FormatHttpReply(const HttpReply& reply, bool head_only) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n{}{}"
      "Connection: close\r\n\r\n{}",
      reply.code, Reason(reply.code), reply.content_type, reply.body.size(),
      reply.security_policy.empty()
          ? ""
          : fmt::format("Content-Security-Policy: {}\r\n", reply.security_policy),
      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", head_only ? "" : reply.body);
}

HttpReply HttpError(int code) { return {.code = code, .body = fmt::format("{}\n", Reason(code))}; }

}  // namespace dws
