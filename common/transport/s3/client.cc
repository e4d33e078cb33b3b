// Each attempt gets a signature of its own: stores accept one for 15 minutes, and keys may have
// changed since the attempt before. What an answer must have is looked at in the attempt, so that
// one without it is asked for again.
#include "common/transport/s3/client.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/transport/shared_fs/remote_file.h"

namespace dws::s3 {
namespace {

constexpr size_t kPagesMax = 100;  // of 1,000 keys
constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kReasonBytesMax = 300;
// An attempt ends after this, though bytes trickle.
constexpr std::chrono::minutes kAttemptMax{10};

// What the store says of an error: its code, and its words with that.
struct Refusal {
  std::string code;
  std::string words;
};

Refusal RefusalOf(const HttpAnswer& answer) {
  Refusal refusal{.code = "", .words = fmt::format("status {}", answer.code)};
  if (answer.body.size() > AnswerBytesMax(0)) return refusal;
  const Result<Elements> elements = ReadXml(answer.body);
  if (!elements.ok()) return refusal;
  refusal.code = TextOf(*elements, "Error/Code");
  const std::string text = fmt::format("{}: {}", refusal.code, TextOf(*elements, "Error/Message"));
  if (!refusal.code.empty()) {
    refusal.words += ": " + EscapeUnprintable(std::string_view(text).substr(0, kReasonBytesMax));
  }
  return refusal;
}

Status PermissionDenied(std::string_view message) {
  return MakeStatus(absl::StatusCode::kPermissionDenied, message);
}

// Codes that readers and writers of a shared directory act on (NOT_FOUND, DATA_LOSS, ABORTED,
// FAILED_PRECONDITION) are given only for what they mean there.
Status ErrorOf(const HttpAnswer& answer) {
  static constexpr std::array<std::string_view, 2> kMissing = {"NoSuchKey", "NoSuchUpload"};
  static constexpr std::array<std::string_view, 6> kTransient = {
      "RequestTimeout", "OperationAborted",   "ConditionalRequestConflict",
      "SlowDown",       "ServiceUnavailable", "InternalError"};
  const Refusal refusal = RefusalOf(answer);
  if (std::ranges::find(kMissing, refusal.code) != kMissing.end()) {
    return NotFoundError("{}", refusal.words);
  }
  if (answer.code == 412) {
    return DataLossError("{}: it is another object than was opened", refusal.words);
  }
  const bool transient = answer.code >= 500 || answer.code == 408 || answer.code == 409 ||
                         answer.code == 429 ||
                         std::ranges::find(kTransient, refusal.code) != kTransient.end();
  if (transient) return UnavailableError("{}", refusal.words);
  return PermissionDenied(
      refusal.words +
      "; look at the endpoint, the region, the bucket, the credentials and what they allow, and "
      "the clock");
}

std::string_view OutcomeOf(const Status& status) {
  if (status.ok()) return "done";
  if (absl::IsNotFound(status)) return "missing";
  if (absl::IsPermissionDenied(status)) return "refused";
  if (absl::IsDeadlineExceeded(status)) return "late";
  return absl::IsCancelled(status) ? "cancelled" : "failed";
}

bool IsDone(int code) { return code >= 200 && code < 300; }

// An answer with 200 may still be an error: the store begins to answer before it is done.
Result<Elements> Body(const HttpAnswer& answer, std::string_view root) {
  auto elements = ReadXml(answer.body);
  if (!elements.ok()) return UnavailableError("{}", Message(elements.status()));
  const std::string first = elements->empty() ? "" : elements->front().first;
  if (first != root && !first.starts_with(fmt::format("{}/", root))) {
    if (first.starts_with("Error/")) return ErrorOf(answer);
    return UnavailableError("expected <{}>, found \"{}\"", root,
                            EscapeUnprintable(std::string_view(answer.body).substr(0, 80)));
  }
  return elements;
}

// Bounds what a listing takes.
Status AddName(const std::string& name, std::vector<std::string>& names) {
  if (name.size() > kKeyBytesMax) {
    return UnavailableError("a key of {} bytes, at most {} are possible", name.size(),
                            kKeyBytesMax);
  }
  if (names.size() == limits::kSharedFoldersMax) {
    return UnavailableError("more than {} names; remove what is none of a shared directory's",
                            names.size());
  }
  names.push_back(name);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Client>> Client::Create(Options options) {
  DWS_CHECK(options.credentials != nullptr && options.reads != nullptr &&
            options.writes != nullptr);
  DWS_ASSIGN_OR_RETURN(
      auto caller,
      HttpCaller::Create(options.endpoint, {.ca_file = options.ca_file,
                                            .answer_bytes_max = kObjectBodyBytesMax,
                                            .idle_connections_max = shared::kRequestsAtOnceMax}));
  return std::unique_ptr<Client>(new Client(std::move(options), std::move(caller)));
}

Client::Client(Options options, std::unique_ptr<HttpCaller> caller)
    : options_(std::move(options)), caller_(std::move(caller)) {
  for (const std::string_view outcome : kOutcomes) traffic_.requests[std::string(outcome)] = 0;
}

std::string Client::NameOf(const Request& request) const {
  return fmt::format("{} s3://{}/{} at {}", ToString(request.method), options_.bucket,
                     EscapeUnprintable(request.key), options_.endpoint.ToString());
}

Result<HttpAnswer> Client::Try(const Request& request) const {
  const Result<Credentials> credentials = options_.credentials();
  if (const Status& status = credentials.status(); !status.ok()) {
    const bool may_come = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                          absl::IsCancelled(status);
    return may_come ? status : PermissionDenied(Message(status));
  }
  const std::string path =
      fmt::format("/{}{}{}", options_.bucket, request.key.empty() ? "" : "/", request.key);
  const SignedRequest to_sign{.method = ToString(request.method),
                              .host = options_.endpoint.HostHeader(),
                              .path = options_.endpoint.path + path,
                              .query = request.query,
                              .headers = request.headers,
                              .body = AsBytes(request.body)};
  const std::string query = QueryText(request.query);
  HttpCall call{.method = request.method,
                .target = EscapeUrl(path, true) + (query.empty() ? "" : "?" + query),
                .headers = request.headers,
                .body = std::string(request.body),
                .still_max = options_.effort.still_max,
                .answer_bytes_max = AnswerBytesMax(request.answer_bytes_max)};
  const Headers proof = Sign(to_sign, *credentials, {.region = options_.region, .service = "s3"},
                             options_.wall_clock->Now());
  call.headers.insert(call.headers.end(), proof.begin(), proof.end());
  const Cancellation& cancellation = CancellationOf(request);
  HttpOutcome outcome =
      caller_->Call(call, kAttemptMax, [&cancellation] { return cancellation.cancelled(); });
  {
    MutexLock lock(mutex_);
    if (outcome.sent) traffic_.sent_bytes += request.body.size();
    if (outcome.answer.ok()) traffic_.received_bytes += outcome.answer->body.size();
  }
  const Status& status = outcome.answer.status();
  // What readers take for this machine's memory is the store's fault.
  if (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status)) {
    return PermissionDenied(Message(status));
  }
  DWS_RETURN_IF_ERROR(status);
  if (!IsDone(outcome.answer->code)) return ErrorOf(*outcome.answer);
  return std::move(outcome.answer);
}

Result<HttpAnswer> Client::Send(const Request& request, const AnswerCheck& check) const {
  int attempt = 0;
  return CallPatiently(NameOf(request),
                       {.attempts = options_.effort.attempts,
                        .delay = options_.retry_delay,
                        .cancellation = CancellationOf(request)},
                       options_.effort.repeats_late, [&] {
                         Result<HttpAnswer> answer = Try(request);
                         if (answer.ok() && check != nullptr) {
                           if (const Status right = check(*answer); !right.ok()) answer = right;
                         }
                         Note(request, ++attempt, answer.status());
                         return answer;
                       });
}

Result<Elements> Client::SendForXml(const Request& request, std::string_view root) const {
  Elements elements;
  const auto check = [&](const HttpAnswer& answer) -> Status {
    DWS_ASSIGN_OR_RETURN(elements, Body(answer, root));
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(Send(request, check).status());
  return elements;
}

void Client::Note(const Request& request, int attempt, const Status& status) const {
  const std::string_view outcome = OutcomeOf(status);
  MutexLock lock(mutex_);
  ++traffic_.requests[std::string(outcome)];
  if (attempt > 1) ++traffic_.retries;
  if (outcome == "done" || outcome == "missing" || outcome == "cancelled") return;
  traffic_.failure = fmt::format("{}: {}", NameOf(request), Message(status));
  traffic_.failed_at = RealClock().Now();
}

Traffic Client::traffic() const {
  MutexLock lock(mutex_);
  return traffic_;
}

Cancellation& Client::CancellationOf(const Request& request) const {
  const bool reads = request.method == HttpMethod::kGet || request.method == HttpMethod::kHead;
  return reads ? *options_.reads : *options_.writes;
}

Status Client::Put(const std::string& key, ByteSpan bytes) const {
  return Send({.method = HttpMethod::kPut, .key = key, .body = AsText(bytes)}).status();
}

Result<std::string> Client::Get(const std::string& key, uint64_t size_bytes_max) const {
  DWS_ASSIGN_OR_RETURN(HttpAnswer answer, Send({.key = key, .answer_bytes_max = size_bytes_max}));
  return std::move(answer.body);
}

Result<std::string> Client::GetRange(const std::string& key, uint64_t first, uint64_t size,
                                     const std::string& etag) const {
  const Request request{.key = key,
                        .headers = {{"range", fmt::format("bytes={}-{}", first, first + size - 1)},
                                    {"if-match", etag}},
                        .answer_bytes_max = size};
  const auto check = [first, size](const HttpAnswer& answer) -> Status {
    if (answer.code == 206 && answer.body.size() == size) return OkStatus();
    const std::string found = fmt::format(
        "asked for {} bytes from {} on, expected them with status 206, found {} with {}", size,
        first, answer.body.size(), answer.code);
    return answer.code == 206 ? UnavailableError("{}", found)
                              : PermissionDenied(found + ": the store must answer ranges");
  };
  DWS_ASSIGN_OR_RETURN(HttpAnswer answer, Send(request, check));
  return std::move(answer.body);
}

Result<ObjectState> Client::Head(const std::string& key) const {
  const Request request{.method = HttpMethod::kHead, .key = key};
  const Result<HttpAnswer> asked = Send(request);
  if (!asked.ok() && absl::IsPermissionDenied(asked.status())) {
    // A refusal of HEAD has no words: those of GET tell what is missing.
    DWS_RETURN_IF_ERROR(Send({.key = key, .headers = {{"range", "bytes=0-0"}}}).status());
  }
  DWS_RETURN_IF_ERROR(asked.status());
  auto state = ObjectStateOf(*asked);
  if (!state.ok()) return Annotate(state.status(), NameOf(request));
  return state;
}

Status Client::Delete(const std::string& key, Query of) const {
  const Status status =
      Send({.method = HttpMethod::kDelete, .key = key, .query = std::move(of)}).status();
  return absl::IsNotFound(status) ? OkStatus() : status;
}

Status Client::Pages(Query query, std::string_view root,
                     const std::vector<std::pair<std::string, std::string>>& next,
                     const std::function<Status(const Elements&)>& on_page) const {
  const size_t fixed = query.size();
  for (size_t page = 0; page < kPagesMax; ++page) {
    const Request request{.key = "", .query = query};
    DWS_ASSIGN_OR_RETURN(const Elements elements, SendForXml(request, root));
    if (const Status taken = on_page(elements); !taken.ok()) {
      return Annotate(taken, NameOf(request));
    }
    if (TextOf(elements, fmt::format("{}/IsTruncated", root)) != "true") return OkStatus();
    query.resize(fixed);
    for (const auto& [parameter, element] : next) {
      query.emplace_back(parameter, TextOf(elements, fmt::format("{}/{}", root, element)));
      if (query.back().second.empty()) {
        return UnavailableError("{}: a page ends without <{}>", NameOf(request), element);
      }
    }
  }
  return UnavailableError("s3://{}: more than {} pages", options_.bucket, kPagesMax);
}

Result<Listing> Client::List(const std::string& prefix) const {
  Listing listing;
  const auto take = [&listing](const Elements& elements) -> Status {
    for (const auto& [path, text] : elements) {
      if (path == "ListBucketResult/Contents/Key") {
        DWS_RETURN_IF_ERROR(AddName(text, listing.keys));
      } else if (path == "ListBucketResult/CommonPrefixes/Prefix") {
        DWS_RETURN_IF_ERROR(AddName(text, listing.folders));
      }
    }
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(Pages({{"list-type", "2"}, {"prefix", prefix}, {"delimiter", "/"}},
                            "ListBucketResult", {{"continuation-token", "NextContinuationToken"}},
                            take));
  std::ranges::sort(listing.keys);
  std::ranges::sort(listing.folders);
  return listing;
}

Result<std::string> Client::BeginUpload(const std::string& key) const {
  const Request request{.method = HttpMethod::kPost, .key = key, .query = {{"uploads", ""}}};
  DWS_ASSIGN_OR_RETURN(const Elements elements,
                       SendForXml(request, "InitiateMultipartUploadResult"));
  std::string upload = TextOf(elements, "InitiateMultipartUploadResult/UploadId");
  if (upload.empty()) return UnavailableError("{}: the reply has no UploadId", NameOf(request));
  return upload;
}

Result<std::string> Client::UploadPart(const std::string& key, const std::string& upload,
                                       size_t number, ByteSpan bytes) const {
  const Request request{.method = HttpMethod::kPut,
                        .key = key,
                        .query = {{"partNumber", fmt::format("{}", number)}, {"uploadId", upload}},
                        .body = AsText(bytes)};
  DWS_ASSIGN_OR_RETURN(const HttpAnswer answer, Send(request));
  std::string etag = HeaderOf(answer, "etag");
  if (etag.empty()) return UnavailableError("{}: the reply has no ETag", NameOf(request));
  return etag;
}

Status Client::CompleteUpload(const std::string& key, const std::string& upload,
                              const std::vector<std::string>& etags) const {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    std::string etag;
    for (const char c : etags[i]) {  // a store's etag has no other characters that XML escapes
      etag += c == '"' ? "&quot;" : c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
    }
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etag);
  }
  body += "</CompleteMultipartUpload>";
  const Request request{
      .method = HttpMethod::kPost, .key = key, .query = {{"uploadId", upload}}, .body = body};
  return SendForXml(request, "CompleteMultipartUploadResult").status();
}

Status Client::AbortUpload(const std::string& key, const std::string& upload) const {
  return Delete(key, {{"uploadId", upload}});
}

Result<std::vector<std::pair<std::string, std::string>>> Client::Uploads(
    const std::string& prefix) const {
  std::vector<std::string> keys;
  std::vector<std::string> ids;
  const auto take = [&](const Elements& elements) -> Status {
    for (const auto& [path, text] : elements) {
      if (path == "ListMultipartUploadsResult/Upload/Key") {
        DWS_RETURN_IF_ERROR(AddName(text, keys));
      } else if (path == "ListMultipartUploadsResult/Upload/UploadId") {
        DWS_RETURN_IF_ERROR(AddName(text, ids));
      }
    }
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(
      Pages({{"uploads", ""}, {"prefix", prefix}}, "ListMultipartUploadsResult",
            {{"key-marker", "NextKeyMarker"}, {"upload-id-marker", "NextUploadIdMarker"}}, take));
  if (keys.size() != ids.size()) {
    return UnavailableError("s3://{}: {} uploads with {} keys", options_.bucket, ids.size(),
                            keys.size());
  }
  std::vector<std::pair<std::string, std::string>> uploads;
  for (size_t i = 0; i < ids.size(); ++i) uploads.emplace_back(keys[i], ids[i]);
  return uploads;
}

}  // namespace dws::s3
