// What clients of files and of objects over HTTP have in common: requests that are repeated while
// that may help, and what the answers say of an object. Answers are untrusted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/service/http/http_caller.h"

namespace dws {

// The largest body of a request and of a reply.
inline constexpr uint64_t kObjectBodyBytesMax = uint64_t{64} << 20;

// What of a reply is read where `size_bytes` are asked for: an error has its own words.
constexpr size_t AnswerBytesMax(uint64_t size_bytes) {
  constexpr uint64_t kErrorBytesMax = uint64_t{64} << 10;
  return size_bytes > kErrorBytesMax ? size_bytes : kErrorBytesMax;
}

// An object, or a file, as it is now.
struct ObjectState {
  uint64_t size_bytes = 0;
  std::string etag;  // of this content
};

// The value of the first header with this name, in lower case; "": there is none.
std::string HeaderOf(const HttpAnswer& answer, std::string_view name);

// What the answer to a HEAD says. UNAVAILABLE: it has no Content-Length or no ETag.
Result<ObjectState> ObjectStateOf(const HttpAnswer& answer);

// Looks at a reply: if it is not what was asked for, its error is that of the attempt.
using AnswerCheck = std::function<Status(const HttpAnswer&)>;

// How long a request is repeated.
struct Patience {
  int attempts = 1;
  Duration delay;              // before the second attempt; doubles
  Cancellation& cancellation;  // ends it, and waits for it
};

// Calls `attempt` until it succeeds, or its error is neither UNAVAILABLE nor, with
// `repeats_late`, DEADLINE_EXCEEDED. Errors are those of the last attempt, with `name`, the
// request's; CANCELLED.
Result<HttpAnswer> CallPatiently(const std::string& name, const Patience& patience,
                                 bool repeats_late,
                                 const std::function<Result<HttpAnswer>()>& attempt);

}  // namespace dws
