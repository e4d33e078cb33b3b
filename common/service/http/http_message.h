// The part of HTTP/1.1 that small pages need: parses the head of a request, formats a whole reply.
// Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/service/http/http_pages.h"

namespace dws {

// The head of a request: only what the pages need.
struct HttpRequest {
  int refusal = 0;  // the status code to answer at once: 400, 405 or 505; 0: the request is valid
  bool head_only = false;
  std::string path;  // without the query
};

// `head` is the request line and the headers, including the empty line. Headers are ignored: no
// page depends on one, and the connection ends with the reply.
HttpRequest ParseHttpRequest(std::string_view head);

// All bytes of a reply, from "HTTP/1.1 200 OK" to the end of the body; no body with `head_only`.
std::string FormatHttpReply(const HttpReply& reply, bool head_only);

// The page for an error: its name in plain text.
HttpReply HttpError(int code);

}  // namespace dws
