// Requests to one bucket of an S3-compatible store, path-style (ENDPOINT/BUCKET/KEY), each signed
// with the newest credentials, and repeated for a while where the store may do better. Every answer
// is untrusted: readers check what they get.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/base/wall_clock.h"
#include "common/service/http/http_caller.h"
#include "common/service/http/object_calls.h"
#include "common/transport/s3/reply_xml.h"
#include "common/transport/s3/signature.h"

namespace dws::s3 {

// What begins with a prefix, up to the next slash.
struct Listing {
  std::vector<std::string> keys;     // whole, ascending
  std::vector<std::string> folders;  // whole, each with its slash, ascending
};

// What became of the requests so far, each attempt counted.
struct Traffic {
  std::map<std::string, uint64_t> requests;  // by outcome: all of kOutcomes
  uint64_t retries = 0;                      // attempts after the first
  uint64_t sent_bytes = 0;                   // of bodies
  uint64_t received_bytes = 0;
  std::string failure = {};                 // the newest; "": none yet
  std::optional<TimePoint> failed_at = {};  // of it
};
inline constexpr std::array<std::string_view, 6> kOutcomes = {"done", "missing",   "refused",
                                                              "late", "cancelled", "failed"};

// How much is tried before a request has failed.
struct Effort {
  int attempts = 8;                               // with 12.7 s of delays
  bool repeats_late = true;                       // also an attempt on which nothing moved
  Duration still_max = std::chrono::seconds(30);  // without a byte in either direction
};
// Where others can be asked.
inline constexpr Effort kBriefEffort = {
    .attempts = 3, .repeats_late = false, .still_max = std::chrono::seconds(15)};

// Errors of all calls: NOT_FOUND: there is no such key or upload. PERMISSION_DENIED: the store, or
// what answers there, refuses the request or answers with more than was asked for, or there are no
// credentials. UNAVAILABLE, DEADLINE_EXCEEDED: it, or who gives credentials, cannot be reached or
// is overloaded, after several attempts, or its answer is not one of such a store. DATA_LOSS: the
// object is another one than its etag says. CANCELLED. They name the request and the store's
// reason.
//
// Threads: safe from any.
class Client {
 public:
  struct Options {
    HttpUrl endpoint;
    std::string bucket;
    std::string region;
    std::string ca_file;  // "": for https, the CAs that this machine trusts
    std::function<Result<Credentials>()> credentials;
    Cancellation* reads = nullptr;   // ends GET and HEAD, present and future; never null
    Cancellation* writes = nullptr;  // ends all others; never null
    Effort effort = {};
    Duration retry_delay = std::chrono::milliseconds(100);  // doubles
    const WallClock* wall_clock = &kSystemWallClock;
  };

  static Result<std::unique_ptr<Client>> Create(Options options);

  Status Put(const std::string& key, ByteSpan bytes) const;
  Result<std::string> Get(const std::string& key, uint64_t size_bytes_max) const;
  // Bytes [first, first + size) of the object with this etag; `size` is not 0, and they exist.
  Result<std::string> GetRange(const std::string& key, uint64_t first, uint64_t size,
                               const std::string& etag) const;
  Result<ObjectState> Head(const std::string& key) const;
  // OK also if there is no such key.
  Status Delete(const std::string& key) const { return Delete(key, {}); }
  Result<Listing> List(const std::string& prefix) const;

  // Objects in parts of at least 5 MiB, the last aside.
  Result<std::string> BeginUpload(const std::string& key) const;
  // `number`: from 1. Returns the part's etag.
  Result<std::string> UploadPart(const std::string& key, const std::string& upload, size_t number,
                                 ByteSpan bytes) const;
  Status CompleteUpload(const std::string& key, const std::string& upload,
                        const std::vector<std::string>& etags) const;
  Status AbortUpload(const std::string& key, const std::string& upload) const;
  // (key, upload) of all that were begun and not ended, with keys of this prefix.
  Result<std::vector<std::pair<std::string, std::string>>> Uploads(const std::string& prefix) const;

  Traffic traffic() const;

 private:
  using Query = std::vector<std::pair<std::string, std::string>>;
  struct Request {
    HttpMethod method = HttpMethod::kGet;
    std::string key = {};  // "": the bucket
    Query query = {};
    Headers headers = {};
    std::string_view body = {};
    uint64_t answer_bytes_max = kXmlBytesMax;
  };

  Client(Options options, std::unique_ptr<HttpCaller> caller);
  // An answer that says that it is done, and has what was asked for.
  Result<HttpAnswer> Send(const Request& request, const AnswerCheck& check = nullptr) const;
  // The XML of such an answer, whose root has to be this.
  Result<Elements> SendForXml(const Request& request, std::string_view root) const;
  Result<HttpAnswer> Try(const Request& request) const;
  // OK also if there is no such thing.
  Status Delete(const std::string& key, Query of) const;
  // All pages of a listing; `on_page` gets each, and its error ends them.
  Status Pages(Query query, std::string_view root,
               const std::vector<std::pair<std::string, std::string>>& next,
               const std::function<Status(const Elements&)>& on_page) const;
  std::string NameOf(const Request& request) const;
  Cancellation& CancellationOf(const Request& request) const;
  void Note(const Request& request, int attempt, const Status& status) const;

  const Options options_;
  const std::unique_ptr<HttpCaller> caller_;
  mutable Mutex mutex_;
  mutable Traffic traffic_ GUARDED_BY(mutex_);
};

}  // namespace dws::s3
