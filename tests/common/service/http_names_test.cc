// Calls of an HTTP server whose name a name service is asked for, which is silent or knows no name.
#include <arpa/inet.h>
#include <malloc.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <thread>

#include "common/base/unique_fd.h"
#include "common/service/http/http_caller.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr std::chrono::seconds kAmple{20};

// Takes questions on a port of loopback, and answers that there is no such name, or nothing.
class NameServer {
 public:
  enum class Kind { kSilent, kKnowsNone };
  explicit NameServer(Kind kind)
      : kind_(kind), socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    std::ofstream(folder_.File("resolv.conf"))
        << fmt::format("nameserver 127.0.0.1:{}\n", ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~NameServer() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string file() const { return folder_.File("resolv.conf"); }
  int asked() const { return asked_; }

 private:
  void Serve() {
    std::array<unsigned char, 512> message = {};
    while (true) {
      sockaddr_in from = {};
      socklen_t size = sizeof(from);
      const ssize_t got = ::recvfrom(socket_.get(), message.data(), message.size(), 0,
                                     reinterpret_cast<sockaddr*>(&from), &size);
      if (got <= 0) return;
      ++asked_;
      if (kind_ == Kind::kSilent || got < 12) continue;
      message[2] |= 0x80;  // a response
      message[3] = 0x83;   // NXDOMAIN
      (void)!::sendto(socket_.get(), message.data(), static_cast<size_t>(got), 0,
                      reinterpret_cast<const sockaddr*>(&from), size);
    }
  }

  const Kind kind_;
  const TempFolder folder_;
  UniqueFd socket_;
  std::atomic<int> asked_{0};
  std::thread thread_;
};

std::unique_ptr<HttpCaller> CallerOf(const std::string& url, const NameServer& names) {
  auto caller = HttpCaller::Create(*ParseHttpUrl(url),
                                   {.answer_bytes_max = 10, .resolver_file = names.file()});
  REQUIRE(caller.ok());
  return *std::move(caller);
}

}  // namespace

TEST_CASE("a name that no name server knows is said to be that", "[http]") {
  const NameServer names(NameServer::Kind::kKnowsNone);
  const auto caller = CallerOf("http://engine.none.test", names);
  const HttpOutcome none = caller->Call({.target = "/"}, kAmple);
  CHECK(absl::IsUnavailable(none.answer.status()));
  CHECK_FALSE(none.sent);
  CHECK_THAT(ToString(none.answer.status()), Contains("the name engine.none.test is not resolved"));
  CHECK(names.asked() > 0);
}

TEST_CASE("calls that end while their name is looked up leave nothing behind", "[http]") {
  const NameServer names(NameServer::Kind::kSilent);
  const std::string url = GENERATE("http://engine.none.test", "https://engine.none.test");
  const auto caller = CallerOf(url, names);
  const auto call = [&] {
    const HttpOutcome late = caller->Call({.target = "/"}, std::chrono::milliseconds(5));
    CHECK(absl::IsDeadlineExceeded(late.answer.status()));
  };
  for (int i = 0; i < 20; ++i) call();
  const size_t before = ::mallinfo2().uordblks;
  constexpr size_t kCalls = 200;
  for (size_t i = 0; i < kCalls; ++i) call();
  // A call that leaves its connection behind leaves some 10 KB. (Under AddressSanitizer both are 0,
  // and it tells of leaks itself.)
  CHECK(::mallinfo2().uordblks < before + 500 * kCalls);
  CHECK(names.asked() > 0);
}

}  // namespace dws
