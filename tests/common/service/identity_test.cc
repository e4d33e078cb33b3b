#include "common/service/security/identity.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/model/limits.h"

namespace dws {
namespace {

TEST_CASE("an identity is read from its URI and written to it", "[identity]") {
  struct Case {
    std::string uri;
    Identity identity;
  };
  const std::vector<Case> cases = {
      {"dws://job/publish/0", SenderIdentity("job", 0)},
      {"dws://job/train/12", SenderIdentity("job", 12, Role::kTrain)},
      {"dws://job/publish/4294967295", SenderIdentity("job", 4294967295U)},
      {"dws://rl-run_7.a~b/receive/node-3", ReceiverIdentity("rl-run_7.a~b", "node-3")},
      {"dws://a%2Fb/receive/x%20y%25", ReceiverIdentity("a/b", "x y%")},
      {"dws://j/operate/%C3%A9", {.job_id = "j", .role = Role::kOperate, .name = "é"}},
  };
  for (const Case& wanted : cases) {
    INFO(wanted.uri);
    const Result<Identity> read = ParseIdentity(wanted.uri);
    REQUIRE(read.ok());
    CHECK(*read == wanted.identity);
    CHECK(ToUri(wanted.identity) == wanted.uri);
  }
}

TEST_CASE("different spellings of one identity are equal", "[identity]") {
  const Identity wanted = ReceiverIdentity("job", "a@b:c");
  for (const std::string uri : {"dws://job/receive/a@b:c", "dws://%6Aob/receive/a%40b%3ac"}) {
    CHECK(*ParseIdentity(uri) == wanted);
  }
}

TEST_CASE("every byte of an id is kept in the URI or is refused", "[identity]") {
  for (int byte = 0; byte < 256; ++byte) {
    INFO(byte);
    const Identity identity = ReceiverIdentity("j", std::string("x") + static_cast<char>(byte));
    const Result<Identity> read = ParseIdentity(ToUri(identity));
    REQUIRE(read.ok() == (byte >= 0x20 && byte != 0x7f));
    if (read.ok()) CHECK(*read == identity);
  }
}

TEST_CASE("a malformed identity is refused and quoted", "[identity]") {
  const std::string longest(limits::kIdBytesMax, 'x');
  CHECK(ParseIdentity("dws://j/receive/" + longest).ok());
  for (const std::string& uri : {std::string(),
                                 std::string("dws://"),
                                 std::string("spiffe://j/receive/a"),
                                 std::string("DWS://j/receive/a"),
                                 std::string("dws:/j/receive/a"),
                                 std::string("dws://j/receive"),
                                 std::string("dws://j/receive/a/b"),
                                 std::string("dws://j/receive/"),
                                 std::string("dws:///receive/a"),
                                 std::string("dws://j/Receive/a"),
                                 std::string("dws://j/admin/a"),
                                 std::string("dws://j//a"),
                                 std::string("dws://j/publish/x"),
                                 std::string("dws://j/train/x"),
                                 std::string("dws://j/publish/-1"),
                                 std::string("dws://j/publish/01"),
                                 std::string("dws://j/publish/4294967296"),
                                 std::string("dws://j/publish/+1"),
                                 std::string("dws://j/receive/a%2"),
                                 std::string("dws://j/receive/a%zz"),
                                 std::string("dws://j/receive/a%+1"),
                                 std::string("dws://j/receive/a b"),
                                 std::string("dws://j/receive/a?q"),
                                 std::string("dws://j/receive/a#f"),
                                 std::string("dws://j/receive/a%00"),
                                 std::string("dws://j/receive/a%0A"),
                                 "dws://j/receive/x" + longest}) {
    INFO(uri);
    const Result<Identity> read = ParseIdentity(uri);
    REQUIRE(absl::IsInvalidArgument(read.status()));
    CHECK_THAT(std::string(Message(read.status())), Catch::Contains("\"" + uri + "\""));
  }
}

}  // namespace
}  // namespace dws
