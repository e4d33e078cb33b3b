// Attempts are made again only where the server may do better: a refusal stays one.
#include "common/service/http/object_calls.h"

#include <algorithm>
#include <charconv>

namespace dws {

std::string HeaderOf(const HttpAnswer& answer, std::string_view name) {
  const auto found = std::ranges::find(answer.headers, name, [](const auto& h) { return h.first; });
  return found == answer.headers.end() ? "" : found->second;
}

Result<ObjectState> ObjectStateOf(const HttpAnswer& answer) {
  const std::string size = HeaderOf(answer, "content-length");
  ObjectState state{.size_bytes = 0, .etag = HeaderOf(answer, "etag")};
  const auto [end, error] =
      std::from_chars(size.data(), size.data() + size.size(), state.size_bytes);
  if (error != std::errc() || end != size.data() + size.size() || state.etag.empty()) {
    return UnavailableError("the reply has no Content-Length or no ETag");
  }
  return state;
}

Result<HttpAnswer> CallPatiently(const std::string& name, const Patience& patience,
                                 bool repeats_late,
                                 const std::function<Result<HttpAnswer>()>& attempt) {
  Duration delay = patience.delay;
  for (int attempts = 1;; ++attempts) {
    if (patience.cancellation.cancelled()) return CancelledError("{}: given up", name);
    Result<HttpAnswer> answer = attempt();
    if (answer.ok()) return answer;
    const bool may_help = absl::IsUnavailable(answer.status()) ||
                          (repeats_late && absl::IsDeadlineExceeded(answer.status()));
    if (!may_help || attempts >= patience.attempts) {
      return MakeStatus(answer.status().code(),
                        fmt::format("{}: {}", name, Message(answer.status())));
    }
    if (!patience.cancellation.Sleep(delay)) return CancelledError("{}: given up", name);
    delay *= 2;
  }
}

}  // namespace dws
