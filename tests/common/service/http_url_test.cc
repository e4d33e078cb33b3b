#include "common/service/http/http_url.h"

#include <catch2/catch.hpp>
#include <string>

namespace dws {

TEST_CASE("the URL of a server is split into its parts", "[http]") {
  CHECK(*ParseHttpUrl("http://127.0.0.1:30000") == HttpUrl{.host = "127.0.0.1", .port = 30000});
  CHECK(*ParseHttpUrl("https://engine-3.pool/prefix/") ==
        HttpUrl{.tls = true, .host = "engine-3.pool", .port = 443, .path = "/prefix"});
  CHECK(*ParseHttpUrl("http://[::1]/") == HttpUrl{.host = "::1", .port = 80});
  CHECK(ParseHttpUrl("http://[::1]:8000")->HostPort() == "[::1]:8000");
  CHECK(ParseHttpUrl("https://a:1/b//")->ToString() == "https://a:1/b");
  CHECK(ParseHttpUrl("http://localhost:1")->IsLoopback());
  CHECK(ParseHttpUrl("http://[::1]:1")->IsLoopback());
  CHECK(ParseHttpUrl("http://127.8.0.1:1")->IsLoopback());
  CHECK_FALSE(ParseHttpUrl("http://10.0.0.1")->IsLoopback());
  CHECK_FALSE(ParseHttpUrl("http://127.evil.example")->IsLoopback());
  CHECK_FALSE(ParseHttpUrl("http://127.0.0.1.evil.example")->IsLoopback());
  CHECK(ParseHttpUrl("http://10.0.0.1")->IsAddress());
  CHECK_FALSE(ParseHttpUrl("http://localhost")->IsAddress());
}

TEST_CASE("a malformed URL of a server is refused", "[http]") {
  for (const std::string text :
       {"", "127.0.0.1:30000", "ftp://a", "http://", "http://:80", "http://a:0", "http://a:65536",
        "http://a:8x", "http://a:", "http://[::1", "http://[a]:1", "http://[::1]x", "http://a b",
        "http://a/\r\nX: y", "http://a/?q", "http://a/#f", "HTTP://a", "http://a_b:1:2"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(ParseHttpUrl(text).status()));
  }
  CHECK(absl::IsInvalidArgument(ParseHttpUrl("http://" + std::string(3000, 'a')).status()));
  // Neither a password nor a signature is shown in messages.
  for (const std::string text : {"http://me:secret@a", "https://a/b?sig=secret", "a?secret",
                                 "https://a/#secret", "HTTP://a?sig=secret"}) {
    const Status secret = ParseHttpUrl(text).status();
    INFO(Message(secret));
    CHECK(absl::IsInvalidArgument(secret));
    CHECK(Message(secret).find("secret") == std::string_view::npos);
  }
}

}  // namespace dws
