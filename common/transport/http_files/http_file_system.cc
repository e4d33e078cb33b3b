// Few attempts and short ones: readers ask elsewhere. Here alone a request is repeated: who reads a
// file of gigabytes must not begin again after one answer that was lost.
#include "common/transport/http_files/http_file_system.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/transport/http_files/listing.h"

namespace dws {
namespace {

constexpr int kAttempts = 3;
constexpr Duration kPatiencePerMiB = std::chrono::seconds(16);  // eight may share the link
constexpr const char* kNoRanges = ": the server must answer ranges";

Status PermissionDenied(std::string_view message) {
  return MakeStatus(absl::StatusCode::kPermissionDenied, message);
}

// Codes that readers of a shared directory act on (NOT_FOUND, DATA_LOSS, ABORTED,
// FAILED_PRECONDITION) are given only for what they mean there.
Status ErrorOf(int code) {
  if (code == 404 || code == 410) return NotFoundError("status {}", code);
  // A cache has waited for its origin: it would again.
  if (code == 504) return DeadlineExceededError("status {}", code);
  if (code >= 500 || code == 408 || code == 416 || code == 421 || code == 425 || code == 429) {
    return UnavailableError("status {}", code);
  }
  return PermissionDenied(fmt::format(
      "status {}; look at the URL, at what the server allows, and at the certificates", code));
}

Status ReadOnly(const std::string& path) {
  return FailedPreconditionError("{}: an HTTP server's files are only read; nothing is written",
                                 path);
}

}  // namespace

bool IsHttpBase(std::string_view path) {
  return path.starts_with("http://") || path.starts_with("https://");
}

Status CheckHttpBase(const std::string& url, bool insecure) {
  DWS_ASSIGN_OR_RETURN(const HttpUrl parsed, ParseHttpUrl(url));
  if (url.ends_with('/') || parsed.path.find_first_of("%\\") != std::string::npos ||
      (parsed.path + "/").find("/.") != std::string::npos ||
      parsed.path.find("//") != std::string::npos) {
    return InvalidArgumentError(
        "expected https://HOST/PATH without a slash at its end, with a path of parts that are "
        "neither escaped nor begin with a dot, found \"{}\"",
        url);
  }
  if (parsed.tls || parsed.IsLoopback() || insecure) return OkStatus();
  return InvalidArgumentError(
      "weights would travel unencrypted from {}: use https, or allow it with --insecure",
      parsed.ToString());
}

HttpFileSystem::HttpFileSystem(Options options, std::unique_ptr<HttpCaller> caller)
    : options_(std::move(options)),
      caller_(std::move(caller)),
      ahead_(shared::kRequestsAtOnceMax, shared::kRequestsQueuedMax) {}

Result<std::unique_ptr<HttpFileSystem>> HttpFileSystem::Create(Options options) {
  DWS_CHECK(options.reads != nullptr);
  DWS_RETURN_IF_ERROR(CheckHttpBase(options.url, true));
  DWS_ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(options.url));
  DWS_ASSIGN_OR_RETURN(
      auto caller,
      HttpCaller::Create(std::move(url), {.ca_file = options.ca_file,
                                          .cert_file = options.cert_file,
                                          .key_file = options.key_file,
                                          .answer_bytes_max = kObjectBodyBytesMax,
                                          .idle_connections_max = shared::kRequestsAtOnceMax}));
  return std::unique_ptr<HttpFileSystem>(new HttpFileSystem(std::move(options), std::move(caller)));
}

Result<HttpAnswer> HttpFileSystem::Send(const Request& request, const AnswerCheck& check) const {
  if (!request.path.starts_with(options_.url + "/")) {
    return InvalidArgumentError("{} is not below {}", request.path, options_.url);
  }
  const HttpCall call{
      .method = request.method,
      .target = EscapeUrl(std::string_view(request.path).substr(options_.url.size()), true),
      .headers = request.headers,
      .body = {},
      .still_max = options_.attempt,
      .answer_bytes_max = AnswerBytesMax(request.answer_bytes_max)};
  const Duration patience =
      options_.attempt + kPatiencePerMiB * static_cast<int64_t>(request.size_bytes >> 20);
  Cancellation& reads = *options_.reads;
  const auto attempt = [&]() -> Result<HttpAnswer> {
    HttpOutcome outcome = caller_->Call(call, patience, [&reads] { return reads.cancelled(); });
    const Status& status = outcome.answer.status();
    if (absl::IsFailedPrecondition(status)) return PermissionDenied(Message(status));
    if (absl::IsResourceExhausted(status)) {  // which would be this machine's memory
      return PermissionDenied(fmt::format("{}{}", Message(status), request.if_larger));
    }
    DWS_RETURN_IF_ERROR(status);
    const int code = outcome.answer->code;
    if (code != 200 && code != 206) return ErrorOf(code);
    if (check != nullptr) DWS_RETURN_IF_ERROR(check(*outcome.answer));
    return std::move(outcome.answer);
  };
  return CallPatiently(
      fmt::format("{} {}", ToString(request.method), EscapeUnprintable(request.path)),
      {.attempts = kAttempts, .delay = options_.retry_delay, .cancellation = reads}, false,
      attempt);
}

Result<std::vector<std::byte>> HttpFileSystem::ReadFile(const std::string& path,
                                                        uint64_t size_bytes_max) {
  DWS_ASSIGN_OR_RETURN(const HttpAnswer answer,
                       Send({.path = path, .answer_bytes_max = size_bytes_max}));
  if (answer.body.size() > size_bytes_max) {
    return ResourceExhaustedError("{} has {} bytes, at most {} are read", path, answer.body.size(),
                                  size_bytes_max);
  }
  const ByteSpan bytes = AsBytes(answer.body);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<std::unique_ptr<ReadableFile>> HttpFileSystem::Open(const std::string& path,
                                                           bool past_caches) {
  Request request{.method = HttpMethod::kHead, .path = path};
  if (past_caches) request.headers.emplace_back("Cache-Control", "no-cache");
  DWS_ASSIGN_OR_RETURN(const HttpAnswer answer, Send(request));
  auto state = ObjectStateOf(answer);
  if (!state.ok()) return Annotate(state.status(), "HEAD " + path);
  const uint64_t size_bytes = state->size_bytes;
  return std::make_unique<shared::RemoteFile>(
      shared::RemoteFile::Options{.size_bytes = size_bytes,
                                  .request_bytes_max = kObjectBodyBytesMax},
      [this, opened = Opened{path, *std::move(state), past_caches}](shared::FileRange range) {
        return ReadRange(opened, range);
      },
      ahead_);
}

Result<std::string> HttpFileSystem::ReadRange(const Opened& file,
                                              const shared::FileRange& range) const {
  Request request{.path = file.path,
                  .headers = {{"Range", fmt::format("bytes={}-{}", range.offset, range.end() - 1)}},
                  .size_bytes = range.size_bytes,
                  .answer_bytes_max = range.size_bytes,
                  .if_larger = kNoRanges};
  if (file.past_caches) request.headers.emplace_back("Cache-Control", "no-cache");
  const auto check = [&](const HttpAnswer& answer) -> Status {
    const bool whole =
        answer.code == 200 && range.offset == 0 && range.size_bytes == file.state.size_bytes;
    if (answer.code != 206 && !whole) {
      return PermissionDenied(
          fmt::format("asked for {} bytes from {} on, expected status 206, found {}{}",
                      range.size_bytes, range.offset, answer.code, kNoRanges));
    }
    if (answer.body.size() != range.size_bytes) {
      return UnavailableError("asked for {} bytes from {} on, found {}", range.size_bytes,
                              range.offset, answer.body.size());
    }
    if (const std::string etag = HeaderOf(answer, "etag"); etag != file.state.etag) {
      return DataLossError(
          "expected ETag {} as when it was opened, found {}: it is another file by now, or servers "
          "behind this name give it different times",
          EscapeUnprintable(file.state.etag), EscapeUnprintable(etag));
    }
    return OkStatus();
  };
  DWS_ASSIGN_OR_RETURN(HttpAnswer answer, Send(request, check));
  return std::move(answer.body);
}

Result<std::unique_ptr<ReadableFile>> HttpFileSystem::OpenForRead(const std::string& path) {
  return Open(path, false);
}

Result<std::unique_ptr<ReadableFile>> HttpFileSystem::OpenPastCaches(const std::string& path) {
  return Open(path, true);
}

Result<std::vector<std::string>> HttpFileSystem::List(const std::string& folder) {
  const std::string path = folder + "/";
  std::vector<std::string> names;
  const auto check = [&names](const HttpAnswer& answer) -> Status {
    DWS_ASSIGN_OR_RETURN(names, http_files::ParseListing(answer.body));
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(Send({.path = path}, check).status());
  return names;
}

Result<std::unique_ptr<AppendFile>> HttpFileSystem::OpenForAppend(const std::string& path) {
  return ReadOnly(path);
}

Result<std::unique_ptr<AppendFile>> HttpFileSystem::Create(const std::string& path) {
  return ReadOnly(path);
}

Status HttpFileSystem::ReplaceFile(const std::string& path, ByteSpan /*bytes*/) {
  return ReadOnly(path);
}

Status HttpFileSystem::Rename(const std::string& from, const std::string& /*to*/) {
  return ReadOnly(from);
}

Status HttpFileSystem::MakeFolders(const std::string& folder) { return ReadOnly(folder); }

Status HttpFileSystem::Remove(const std::string& path) { return ReadOnly(path); }

Status HttpFileSystem::RemoveFolder(const std::string& folder) { return ReadOnly(folder); }

Result<std::unique_ptr<FileLock>> HttpFileSystem::Lock(const std::string& path) {
  return ReadOnly(path);
}

}  // namespace dws
