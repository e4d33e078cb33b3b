// Calls that go by connections left open, of a server that answers byte by byte as it is told.
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/service/http/http_caller.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kAmple{20};
constexpr std::chrono::milliseconds kBrief{400};
const std::string kOk = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

// What a server does with one connection, step by step.
struct Step {
  enum class Kind { kAnswer, kSay, kClose, kStopListening, kAwaitSecond } kind;
  std::string bytes = {};
};
// Waits for a request, then sends this.
Step Answer(std::string bytes) { return {Step::Kind::kAnswer, std::move(bytes)}; }
// Sends this without a request.
Step Say(std::string bytes) { return {Step::Kind::kSay, std::move(bytes)}; }
const Step kTakeRequest{Step::Kind::kAnswer, ""};
const Step kClose{Step::Kind::kClose};
const Step kStopListening{Step::Kind::kStopListening};
const Step kAwaitSecond{Step::Kind::kAwaitSecond};  // until there are two connections

// Serves each of its connections on a thread of its own, the nth by the nth script. After the last
// step it waits for the other side to close. Events are "N METHOD /target", "N said", "N closed"
// (by the server) and "N ended" (by the caller).
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::vector<Step>> scripts, const std::string& pem = "")
      : scripts_(std::move(scripts)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::signal(SIGPIPE, SIG_IGN);
    if (!pem.empty()) {
      tls_ = SSL_CTX_new(TLS_server_method());
      REQUIRE(SSL_CTX_use_certificate_chain_file(tls_, pem.c_str()) == 1);
      REQUIRE(SSL_CTX_use_PrivateKey_file(tls_, pem.c_str(), SSL_FILETYPE_PEM) == 1);
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 8) == 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    url_ = *ParseHttpUrl(
        fmt::format("{}://127.0.0.1:{}", pem.empty() ? "http" : "https", ntohs(address.sin_port)));
    accepting_ = std::thread([this] { Accept(); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    accepting_.join();
    {
      MutexLock lock(mutex_);
      for (const UniqueFd& each : connections_) ::shutdown(each.get(), SHUT_RDWR);
    }
    for (std::thread& each : serving_) each.join();
    if (tls_ != nullptr) SSL_CTX_free(tls_);
  }

  const HttpUrl& url() const { return url_; }
  std::vector<std::string> events() const {
    MutexLock lock(mutex_);
    return events_;
  }
  bool Await(const std::string& event) const {
    return Eventually([&] { return std::ranges::count(events(), event) > 0; });
  }
  // The requests alone.
  std::vector<std::string> requests() const {
    std::vector<std::string> all = events();
    std::erase_if(all, [](const std::string& each) { return each.find('/') == std::string::npos; });
    return all;
  }

 private:
  struct Stream {
    int fd;
    SSL* ssl;
    ssize_t Read(char* to, size_t size) const {
      return ssl == nullptr ? ::recv(fd, to, size, 0) : SSL_read(ssl, to, static_cast<int>(size));
    }
    void Write(const std::string& bytes) const {
      if (bytes.empty()) return;
      if (ssl == nullptr) {
        (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      } else {
        SSL_write(ssl, bytes.data(), static_cast<int>(bytes.size()));
      }
    }
  };

  void Accept() {
    while (true) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      size_t number = 0;
      {
        MutexLock lock(mutex_);
        connections_.emplace_back(fd);
        number = connections_.size();
      }
      serving_.emplace_back([this, fd, number] { Serve(fd, number); });
    }
  }

  void Note(size_t number, const std::string& what) {
    MutexLock lock(mutex_);
    events_.push_back(fmt::format("{} {}", number, what));
  }

  // Returns false if there is none.
  bool TakeRequest(const Stream& stream, size_t number) {
    std::string text;
    size_t end = std::string::npos;
    char bytes[4096];
    while ((end = text.find("\r\n\r\n")) == std::string::npos) {
      const ssize_t got = stream.Read(bytes, sizeof(bytes));
      if (got <= 0) return false;
      text.append(bytes, static_cast<size_t>(got));
    }
    const size_t length_at = text.find("Content-Length: ");
    size_t left = length_at < end ? std::stoul(text.substr(length_at + 16)) : 0;
    left -= std::min(left, text.size() - end - 4);
    while (left > 0) {
      const ssize_t got = stream.Read(bytes, std::min(left, sizeof(bytes)));
      if (got <= 0) return false;
      left -= static_cast<size_t>(got);
    }
    Note(number, text.substr(0, text.find(" HTTP/")));
    return true;
  }

  void Serve(int fd, size_t number) {
    Stream stream{.fd = fd, .ssl = nullptr};
    if (tls_ != nullptr) {
      stream.ssl = SSL_new(tls_);
      SSL_set_fd(stream.ssl, fd);
      SSL_accept(stream.ssl);
    }
    Follow(stream, number);
    if (stream.ssl != nullptr) SSL_free(stream.ssl);
  }

  void Follow(const Stream& stream, size_t number) {
    const std::vector<Step> script =
        number <= scripts_.size() ? scripts_[number - 1] : std::vector<Step>{kClose};
    for (const Step& step : script) {
      switch (step.kind) {
        case Step::Kind::kAnswer:
          if (!TakeRequest(stream, number)) return Note(number, "ended");
          stream.Write(step.bytes);
          break;
        case Step::Kind::kSay:
          stream.Write(step.bytes);
          Note(number, "said");
          break;
        case Step::Kind::kClose:
          ::shutdown(stream.fd, SHUT_RDWR);
          return Note(number, "closed");
        case Step::Kind::kStopListening:
          ::shutdown(listener_.get(), SHUT_RDWR);
          break;
        case Step::Kind::kAwaitSecond:
          (void)Eventually([this] {
            MutexLock lock(mutex_);
            return connections_.size() >= 2;
          });
          break;
      }
    }
    if (!TakeRequest(stream, number)) Note(number, "ended");
  }

  const std::vector<std::vector<Step>> scripts_;
  UniqueFd listener_;
  HttpUrl url_;
  SSL_CTX* tls_ = nullptr;
  mutable Mutex mutex_;
  std::list<UniqueFd> connections_ GUARDED_BY(mutex_);  // open until the end
  std::vector<std::string> events_ GUARDED_BY(mutex_);
  std::list<std::thread> serving_;
  std::thread accepting_;
};

class Caller {
 public:
  struct Options {
    size_t idle_max = 2;
    Duration idle_for = std::chrono::seconds(60);
    std::string ca_file = {};
    size_t bytes_max = 1000;
  };
  explicit Caller(const ScriptedServer& server) : Caller(server, {}) {}
  Caller(const ScriptedServer& server, const Options& options) {
    auto caller = HttpCaller::Create(server.url(), {.ca_file = options.ca_file,
                                                    .answer_bytes_max = options.bytes_max,
                                                    .idle_connections_max = options.idle_max,
                                                    .idle_max = options.idle_for});
    REQUIRE(caller.ok());
    caller_ = *std::move(caller);
  }
  HttpOutcome operator()(HttpMethod method, const std::string& target,
                         Duration timeout = kAmple) const {
    return caller_->Call({.method = method, .target = target, .headers = {}, .body = {}}, timeout);
  }
  // The reply's body, or why there is none.
  std::string Get(const std::string& target) const {
    const HttpOutcome outcome = (*this)(HttpMethod::kGet, target);
    return outcome.answer.ok() ? outcome.answer->body : ToString(outcome.answer.status());
  }

 private:
  std::unique_ptr<HttpCaller> caller_;
};

using Events = std::vector<std::string>;

}  // namespace

TEST_CASE("calls go by one connection where it may stay open", "[http]") {
  const std::vector<Step> script = {
      Answer(kOk),
      Answer("HTTP/1.1 204 No Content\r\n\r\n"),
      Answer("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),  // of HEAD
      Answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
             "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
      Answer("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"),
      Answer(kOk)};
  const bool tls = GENERATE(false, true);
  const TempFolder folder;
  const TestAuthority authority("a");
  const TestPair pair = authority.Issue({.names = {"IP:127.0.0.1"}});
  std::ofstream(folder.File("server.pem")) << pair.cert_pem << pair.key_pem;
  std::ofstream(folder.File("ca.pem")) << authority.pem();
  const ScriptedServer server({script}, tls ? folder.File("server.pem") : "");
  {
    const Caller call(server, {.ca_file = tls ? folder.File("ca.pem") : ""});
    CHECK(call.Get("/1") == "ok");
    CHECK(call(HttpMethod::kDelete, "/2").answer->code == 204);
    CHECK(call(HttpMethod::kHead, "/3").answer->body.empty());
    CHECK(call.Get("/4") == "abc");
    CHECK(call(HttpMethod::kPut, "/5").answer->code == 404);
    const HttpOutcome last = call(HttpMethod::kPost, "/6");
    CHECK(last.answer->body == "ok");
    CHECK(last.sent);
    CHECK(server.requests().size() == 6);
  }
  CHECK(server.Await("1 ended"));
  CHECK(server.events() == Events{"1 GET /1", "1 DELETE /2", "1 HEAD /3", "1 GET /4", "1 PUT /5",
                                  "1 POST /6", "1 ended"});
}

TEST_CASE("each call has a connection of its own unless more is asked for", "[http]") {
  const ScriptedServer server({{Answer(kOk)}, {Answer(kOk)}});
  const Caller call(server, {.idle_max = 0});
  CHECK(call.Get("/1") == "ok");
  CHECK(server.Await("1 ended"));
  CHECK(call.Get("/2") == "ok");
  CHECK(server.requests() == Events{"1 GET /1", "2 GET /2"});
}

TEST_CASE("nothing of a reply leaks into the next", "[http]") {
  const std::string stranger = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong";
  const std::string first = GENERATE_COPY(
      kOk + stranger, kOk + "x", "HTTP/1.1 204 No Content\r\n\r\n" + stranger,
      "HTTP/1.1 103 Early Hints\r\n\r\n" + stranger,
      "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
      "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
      "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
      "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok",
      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
      "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\nContent-Length: 2\r\n\r\nok",
      "HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x'),
      "not HTTP\r\n\r\n" + stranger);
  INFO(first);
  const ScriptedServer server({{Answer(first)}, {Answer(kOk)}});
  const Caller call(server);
  (void)call(HttpMethod::kGet, "/1");
  CHECK(call.Get("/2") == "ok");
  CHECK(server.requests() == Events{"1 GET /1", "2 GET /2"});
}

TEST_CASE("what a server says between calls is not taken for a reply", "[http]") {
  const ScriptedServer server({{Answer(kOk), Say(kOk)}, {Answer(kOk)}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  REQUIRE(server.Await("1 said"));
  CHECK(call.Get("/2") == "ok");
  CHECK(server.requests() == Events{"1 GET /1", "2 GET /2"});
}

TEST_CASE("a connection whose call ran out of time is closed", "[http]") {
  const std::string begun = GENERATE("", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
  const ScriptedServer server({{Answer(kOk), Answer(begun)}, {Answer(kOk)}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  const HttpOutcome late = call(HttpMethod::kGet, "/2", kBrief);
  CHECK(absl::IsDeadlineExceeded(late.answer.status()));
  CHECK(late.sent);
  CHECK(server.Await("1 ended"));
  // The first call's time is not the later ones'.
  CHECK(call.Get("/3") == "ok");
  CHECK(server.requests() == Events{"1 GET /1", "1 GET /2", "2 GET /3"});
}

TEST_CASE("the time of a call is its own on a connection that had another", "[http]") {
  const ScriptedServer server({{Answer(kOk), kTakeRequest}});
  const Caller call(server);
  CHECK(call(HttpMethod::kGet, "/1", kBrief).answer.ok());
  const TimePoint begin = RealClock().Now();
  CHECK(absl::IsDeadlineExceeded(call(HttpMethod::kGet, "/2", 3 * kBrief).answer.status()));
  CHECK(RealClock().Now() - begin >= 3 * kBrief);
}

TEST_CASE("a call on which nothing moves ends before its time", "[http]") {
  const std::string begun = GENERATE("", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
  const ScriptedServer server({{Answer(begun)}});
  auto caller = HttpCaller::Create(server.url(), {.ca_file = "", .answer_bytes_max = 10});
  REQUIRE(caller.ok());
  const TimePoint begin = RealClock().Now();
  const HttpOutcome still = (*caller)->Call(
      {.method = HttpMethod::kGet, .target = "/1", .headers = {}, .body = {}, .still_max = kBrief},
      kAmple);
  CHECK(absl::IsDeadlineExceeded(still.answer.status()));
  CHECK(ToString(still.answer.status()).find("no byte went or came for 0.4 s") !=
        std::string::npos);
  CHECK(RealClock().Now() - begin < kAmple);
  CHECK(still.sent);
}

TEST_CASE("a connection that the server closed between calls is not used", "[http]") {
  const ScriptedServer server({{Answer(kOk), kClose}, {Answer(kOk)}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  REQUIRE(server.Await("1 closed"));
  const HttpOutcome next = call(HttpMethod::kPost, "/2");  // not a method that may be repeated
  REQUIRE(next.answer.ok());
  CHECK(server.requests() == Events{"1 GET /1", "2 POST /2"});
}

TEST_CASE("a call that a closing connection loses is repeated once where that is safe", "[http]") {
  const HttpMethod method =
      GENERATE(HttpMethod::kGet, HttpMethod::kHead, HttpMethod::kPut, HttpMethod::kDelete);
  const ScriptedServer server(
      {{Answer(kOk), kTakeRequest, kClose}, {Answer("HTTP/1.1 204 No Content\r\n\r\n")}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  const HttpOutcome next = call(method, "/2");
  CHECK(next.answer->code == 204);
  CHECK(next.sent);
  const std::string name = ToString(method);
  CHECK(server.requests() == Events{"1 GET /1", "1 " + name + " /2", "2 " + name + " /2"});
}

TEST_CASE("a call that may have been done is not repeated", "[http]") {
  const bool post = GENERATE(true, false);  // a GET: its reply had begun
  const std::string begun = post ? "" : "HTTP/1.1 2";
  const ScriptedServer server({{Answer(kOk), Answer(begun), kClose}, {Answer(kOk)}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  const HttpOutcome lost = call(post ? HttpMethod::kPost : HttpMethod::kGet, "/2");
  CHECK(absl::IsUnavailable(lost.answer.status()));
  CHECK(lost.sent);
  CHECK(server.requests().size() == 2);
}

TEST_CASE("a first call on a connection is not repeated", "[http]") {
  const ScriptedServer server({{kTakeRequest, kClose}, {Answer(kOk)}});
  const Caller call(server);
  const HttpOutcome lost = call(HttpMethod::kGet, "/1");
  CHECK(absl::IsUnavailable(lost.answer.status()));
  CHECK(lost.sent);
  CHECK(server.requests().size() == 1);
}

TEST_CASE("a repeated call that cannot connect is reported as sent", "[http]") {
  const ScriptedServer server({{Answer(kOk), kTakeRequest, kStopListening, kClose}});
  const Caller call(server);
  CHECK(call.Get("/1") == "ok");
  const HttpOutcome lost = call(HttpMethod::kGet, "/2");
  CHECK(absl::IsUnavailable(lost.answer.status()));
  CHECK(lost.sent);
}

TEST_CASE("no more connections than allowed are left open", "[http]") {
  const std::vector<Step> script = {kAwaitSecond, Answer(kOk)};
  const ScriptedServer server({script, script, {Answer(kOk)}});
  const Caller call(server, {.idle_max = 1});
  bool ok = false;
  std::thread other([&] { ok = call.Get("/a") == "ok"; });
  CHECK(call.Get("/b") == "ok");
  other.join();
  CHECK(ok);
  CHECK(Eventually([&] { return server.events().size() == 3; }));  // one has ended
  CHECK(server.events().back().ends_with("ended"));
}

TEST_CASE("a connection that is not needed any more is closed while another is used", "[http]") {
  const std::vector<Step> script = {kAwaitSecond, Answer(kOk)};
  std::vector<Step> many = script;
  many.insert(many.end(), 2000, Answer(kOk));
  const ScriptedServer server({many, many});
  const Caller call(server, {.idle_for = std::chrono::seconds(1)});
  bool ok = false;
  std::thread other([&] { ok = call.Get("/a") == "ok"; });
  CHECK(call.Get("/b") == "ok");
  other.join();
  CHECK(ok);
  // One of the two is always the newest.
  CHECK(Eventually([&] {
    CHECK(call.Get("/c") == "ok");
    return std::ranges::any_of(server.events(), [](const auto& e) { return e.ends_with("ended"); });
  }));
}

TEST_CASE("a connection that was idle for too long is closed", "[http]") {
  const ScriptedServer server({{Answer(kOk)}, {Answer(kOk)}});
  const Caller call(server, {.idle_for = Duration::zero()});
  CHECK(call.Get("/1") == "ok");
  CHECK(call.Get("/2") == "ok");
  CHECK(server.Await("1 ended"));
  CHECK(server.requests() == Events{"1 GET /1", "2 GET /2"});
}

}  // namespace dws
