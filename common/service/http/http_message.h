// The bytes of HTTP/1.1 as small pages need them: the head of a request in, a whole reply out.
// Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/service/http/http_pages.h"

namespace dws {

struct HttpRequest {
  int refusal = 0;  // the status code to answer at once: 400, 405 or 505; 0: the rest counts
  bool head_only = false;
  std::string path;  // without the query
};

// `head`: the request line and headers, the empty line included. Headers are not looked at: no page
// depends on one, and the connection ends with the reply.
HttpRequest ParseHttpRequest(std::string_view head);

// "HTTP/1.1 200 OK" to the last byte of the body; no body with `head_only`.
std::string FormatHttpReply(const HttpReply& reply, bool head_only);

// The page of an error: its name in plain text.
HttpReply HttpError(int code);

}  // namespace dws
