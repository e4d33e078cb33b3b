// The client of a store, beside a server that answers as it is told. Signatures are not looked at:
// s3_test.cc and tests/integration/transfer/store_test.py do that.
#include "common/transport/s3/client.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>

#include "common/model/limits.h"
#include "common/transport/s3/credentials.h"
#include "tests/fakes/reply_server.h"

namespace dws::s3 {
namespace {

using Catch::Matchers::Contains;

struct Store {
  explicit Store(ReplyServer::Answer answer, Effort effort = {.attempts = 3})
      : server(std::move(answer)) {
    auto made = Client::Create({.endpoint = *ParseHttpUrl(server.url()),
                                .bucket = "weights",
                                .region = "r",
                                .credentials = [this] { return keys; },
                                .reads = &reads,
                                .writes = &writes,
                                .effort = effort,
                                .retry_delay = std::chrono::milliseconds(1)});
    REQUIRE(made.ok());
    client = *std::move(made);
  }
  size_t asked() const { return server.requests().size(); }

  ReplyServer server;
  Cancellation reads;
  Cancellation writes;
  Result<Credentials> keys = Credentials{.access_key_id = "A", .secret_access_key = "B"};
  std::unique_ptr<Client> client;
};

std::string Error(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>m</Message></Error>";
}

}  // namespace

TEST_CASE("a store that ignores ranges is named and takes no memory", "[s3]") {
  // Only the head of a reply of 1 GB comes.
  const Store store([](const std::string&) {
    return "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 1000000000\r\n\r\n";
  });
  const Status none = store.client->GetRange("o/1", 0, 1 << 20, "\"e\"").status();
  INFO(ToString(none));
  CHECK(absl::IsPermissionDenied(none));
  CHECK_THAT(ToString(none), Contains("larger than 1048576 bytes"));
  CHECK(store.asked() == 1);
  CHECK(absl::IsPermissionDenied(store.client->Get("manifest", 1 << 20).status()));
  CHECK(absl::IsPermissionDenied(store.client->List("a/").status()));
}

TEST_CASE("a whole object in place of a range is refused by name", "[s3]") {
  const Store store([](const std::string&) { return ReplyServer::Reply(200, "whole object"); });
  const Status none = store.client->GetRange("o/1", 2, 3, "\"e\"").status();
  CHECK(absl::IsPermissionDenied(none));
  CHECK_THAT(ToString(none), Contains("the store must answer ranges"));
  CHECK(store.asked() == 1);
}

TEST_CASE("a range that came short is asked for again", "[s3]") {
  std::atomic<int> asked{0};
  const Store store(
      [&](const std::string&) { return ReplyServer::Reply(206, ++asked < 3 ? "ab" : "abc"); });
  CHECK(*store.client->GetRange("o/1", 2, 3, "\"e\"") == "abc");
  CHECK(asked == 3);
}

TEST_CASE("an object that was replaced since it was opened is said to be another", "[s3]") {
  const Store store(
      [](const std::string&) { return ReplyServer::Reply(412, Error("PreconditionFailed")); });
  const Status none = store.client->GetRange("o/1", 0, 3, "\"e\"").status();
  CHECK(absl::IsDataLoss(none));
  CHECK_THAT(ToString(none), Contains("another object than was opened"));
  CHECK(store.asked() == 1);
}

TEST_CASE("an error in a reply with status 200 is one", "[s3]") {
  std::atomic<int> asked{0};
  const Store store([&](const std::string& request) -> std::optional<std::string> {
    const bool begins = request.find("?uploads") != std::string::npos;
    if (++asked % 2 == 1) return ReplyServer::Reply(200, Error("InternalError"));
    return ReplyServer::Reply(200, begins ? "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
                                            "</InitiateMultipartUploadResult>"
                                          : "<CompleteMultipartUploadResult><Key>k</Key>"
                                            "</CompleteMultipartUploadResult>");
  });
  CHECK(*store.client->BeginUpload("k") == "u");
  CHECK(store.client->CompleteUpload("k", "u", {"\"e\""}).ok());
  CHECK(asked == 4);
  const Store lost(
      [](const std::string&) { return ReplyServer::Reply(200, Error("NoSuchUpload")); });
  CHECK(absl::IsNotFound(lost.client->CompleteUpload("k", "u", {"\"e\""})));
  CHECK(lost.asked() == 1);
}

TEST_CASE("a listing that has too many names or too long ones is refused", "[s3]") {
  std::string page =
      "<ListBucketResult><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>n</NextContinuationToken>";
  for (int i = 0; i < 6000; ++i) page += "<Contents><Key>a/b</Key></Contents>";
  page += "</ListBucketResult>";
  const Store store([&](const std::string&) { return ReplyServer::Reply(200, page); });
  const Status many = store.client->List("a/").status();
  CHECK(absl::IsUnavailable(many));
  CHECK_THAT(ToString(many), Contains("more than 65536 names"));
  CHECK(store.asked() == limits::kSharedFoldersMax / 6000 + 1);
  const Store other([](const std::string&) {
    return ReplyServer::Reply(200, "<ListMultipartUploadsResult><Upload><Key>" +
                                       std::string(2000, 'k') +
                                       "</Key><UploadId>u</UploadId></Upload>"
                                       "</ListMultipartUploadsResult>");
  });
  const Status large = other.client->Uploads("a/").status();
  CHECK(absl::IsUnavailable(large));
  CHECK_THAT(ToString(large), Contains("a key of 2000 bytes"));
}

TEST_CASE("where others can be asked a store that hangs costs its time once", "[s3]") {
  Effort effort = kBriefEffort;
  CHECK(effort.still_max == std::chrono::seconds(15));
  effort.still_max = std::chrono::milliseconds(200);
  const Store store([](const std::string&) { return std::nullopt; }, effort);
  CHECK(absl::IsDeadlineExceeded(store.client->Get("o/1", 10).status()));
  CHECK(store.asked() == 1);
  const Store busy([](const std::string&) { return ReplyServer::Reply(503, ""); }, effort);
  CHECK(absl::IsUnavailable(busy.client->Get("o/1", 10).status()));
  CHECK(busy.asked() == 3);
}

TEST_CASE("keys that may come are waited for and those that cannot are a refusal", "[s3]") {
  Store store([](const std::string&) { return ReplyServer::Reply(200, "x"); });
  const auto code = [&](const Status& keys) {
    store.keys = keys;
    return store.client->Get("o/1", 10).status().code();
  };
  CHECK(code(UnavailableError("STS: status 503")) == absl::StatusCode::kUnavailable);
  CHECK(code(DeadlineExceededError("STS")) == absl::StatusCode::kDeadlineExceeded);
  CHECK(code(CancelledError("STS")) == absl::StatusCode::kCancelled);
  CHECK(code(FailedPreconditionError("none")) == absl::StatusCode::kPermissionDenied);
  CHECK(code(NotFoundError("none")) == absl::StatusCode::kPermissionDenied);
  CHECK(store.asked() == 0);
}

TEST_CASE("keys that end soon are not asked for at each request", "[s3]") {
  class FixedClock final : public WallClock {
   public:
    UnixTime Now() const override { return now; }
    UnixTime now = UnixTime(std::chrono::seconds(1'800'000'000));  // 2027-01-15T08:00:00Z
  };
  const ReplyServer agent([](const std::string&) {
    return ReplyServer::Reply(200, R"({"AccessKeyId": "A", "SecretAccessKey": "B", "Token": "T",
                                       "Expiration": "2027-01-15T08:03:00Z"})");
  });
  FixedClock clock;
  std::map<std::string, std::string> environment = {
      {"AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.url() + "/keys"},
      {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic abc"}};
  const auto open = [&] {
    return OpenCredentials(
        {.environment = [&](const std::string& name) { return environment[name]; },
         .wall_clock = &clock});
  };
  const auto source = open();
  REQUIRE(source.ok());
  for (int i = 0; i < 10; ++i) CHECK((*source)()->session_token == "T");
  CHECK(agent.requests().size() == 1);
  clock.now += std::chrono::seconds(31);
  CHECK((*source)().ok());
  CHECK(agent.requests().size() == 2);
  environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "abc\r\nX-Other: y";
  const Status refused = open().status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(ToString(refused), Contains("AWS_CONTAINER_AUTHORIZATION_TOKEN: expected one line"));
}

}  // namespace dws::s3
