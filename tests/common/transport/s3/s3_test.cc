// The parts that need no store. tests/integration/transfer/store_test.py has whole daemons and one.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "common/service/http/http_url.h"
#include "common/transport/s3/credentials.h"
#include "common/transport/s3/reply_xml.h"
#include "common/transport/s3/signature.h"
#include "common/transport/s3/store.h"
#include "tests/fakes/temp_folder.h"

namespace dws::s3 {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

// The example key of AWS's documentation, with which its example signatures were made.
const Credentials kExample = {.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                              .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                              .session_token = ""};
constexpr UnixTime kExampleTime{std::chrono::seconds(1'369'353'600)};  // 2013-05-24

std::string SignatureOf(SignedRequest request) {
  request.host = "examplebucket.s3.amazonaws.com";
  const Headers headers =
      Sign(request, kExample, {.region = "us-east-1", .service = "s3"}, kExampleTime);
  CHECK(headers.front() == std::pair<std::string, std::string>("x-amz-date", "20130524T000000Z"));
  return headers.back().second;
}

TEST_CASE("requests are signed as in AWS's examples", "[s3]") {
  CHECK_THAT(
      SignatureOf({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}),
      EndsWith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  CHECK_THAT(SignatureOf({.method = "PUT",
                          .path = "/test$file.text",
                          .headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                                      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                          .body = AsBytes("Welcome to Amazon S3.")}),
             EndsWith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  CHECK_THAT(SignatureOf({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
             EndsWith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  CHECK_THAT(
      SignatureOf({.method = "GET", .path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}),
      EndsWith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST_CASE("a session's token is sent and signed", "[s3]") {
  Credentials session = kExample;
  session.session_token = "token";
  const Headers headers = Sign({.method = "GET", .host = "h", .path = "/"}, session,
                               {.region = "r", .service = "s3"}, kExampleTime);
  CHECK(headers[2] == std::pair<std::string, std::string>("x-amz-security-token", "token"));
  CHECK_THAT(headers[3].second,
             Contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"));
  CHECK_THAT(headers[3].second, Contains("Credential=AKIAIOSFODNN7EXAMPLE/20130524/r/s3/"));
}

TEST_CASE("names are escaped", "[s3]") {
  CHECK(EscapeUrl("a/b c%\xc3\xa9~", true) == "a/b%20c%25%C3%A9~");
  CHECK(EscapeUrl("a/b", false) == "a%2Fb");
  CHECK(QueryText({{"b", ""}, {"a", "1 2"}, {"B", "/"}}) == "B=%2F&a=1%202&b=");
}

TEST_CASE("a store's XML is read by paths", "[s3]") {
  const auto elements = ReadXml(
      "<?xml version=\"1.0\"?>\n<R xmlns=\"x\"><C><Key>a&amp;b</Key></C>\n<C><Key>c</Key></C>"
      "<Empty/><T>true</T></R>");
  REQUIRE(elements.ok());
  CHECK(*elements ==
        Elements{{"R/C/Key", "a&b"}, {"R/C/Key", "c"}, {"R/Empty", ""}, {"R/T", "true"}});
  CHECK(TextOf(*elements, "R/C/Key") == "a&b");
  CHECK(TextOf(*elements, "R/D").empty());
  CHECK(absl::IsInvalidArgument(ReadXml("").status()));
  CHECK(absl::IsInvalidArgument(ReadXml("<R>").status()));
  CHECK(absl::IsInvalidArgument(ReadXml("{}").status()));
  CHECK(absl::IsInvalidArgument(ReadXml("<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a>"
                                        "</a>")
                                    .status()));
  CHECK_THAT(ToString(ReadXml("<!DOCTYPE R [<!ENTITY a \"b\">]><R>&a;</R>").status()),
             Contains("document type"));
}

TEST_CASE("a store is a bucket and a prefix", "[s3]") {
  for (const std::string path : {"s3://bucket", "s3://bucket/a/b", "s3://b-1.x/p"}) {
    INFO(path);
    CHECK(IsStore(path));
    CHECK(CheckStore(path, {}, false).ok());
  }
  CHECK_FALSE(IsStore("/mnt/s3"));
  for (const std::string path :
       {"s3://", "s3://b", "s3://Bucket/a", "s3://bucket/", "s3://bucket/a/", "s3://bucket//a",
        "s3://buc ket/a", "s3://bucket/../a", "s3://bucket/a/.b", "s3://bucket/\xc3\xa9"}) {
    INFO(path);
    CHECK(absl::IsInvalidArgument(CheckStore(path, {}, false)));
  }
  CHECK(absl::IsInvalidArgument(CheckStore("s3://bucket", {.endpoint = "minio:9000"}, true)));
  CHECK(absl::IsInvalidArgument(CheckStore("s3://bucket", {.region = "a b"}, true)));
}

TEST_CASE("weights do not travel in clear to another machine unless that is allowed", "[s3]") {
  const StoreOptions clear{.endpoint = "http://10.0.0.9:9000"};
  CHECK_THAT(ToString(CheckStore("s3://bucket", clear, false)),
             Contains("would travel unencrypted to http://10.0.0.9:9000: use https"));
  CHECK(CheckStore("s3://bucket", clear, true).ok());
  CHECK(CheckStore("s3://bucket", {.endpoint = "http://127.0.0.1:9000"}, false).ok());
  CHECK(CheckStore("s3://bucket", {.endpoint = "https://10.0.0.9"}, false).ok());
  CHECK(absl::IsInvalidArgument(CheckStore("s3://bucket", {.endpoint = "https://h/a%20b"}, false)));
}

TEST_CASE("XML that would grow is refused", "[s3]") {
  const std::string name(65, 'n');
  CHECK(absl::IsInvalidArgument(ReadXml(fmt::format("<{}><a/></{}>", name, name)).status()));
  std::string many = "<R>";
  for (int i = 0; i < 20'001; ++i) many += "<a/>";
  CHECK(absl::IsInvalidArgument(ReadXml(many + "</R>").status()));
  const std::string large = "<R>" + std::string(4 << 20, 'x') + "</R>";
  CHECK(absl::IsInvalidArgument(ReadXml(large).status()));
}

TEST_CASE("keys are read from a private file in AWS's form", "[s3]") {
  const TempFolder folder;
  const std::string path = folder.File("credentials");
  const auto write = [&](const std::string& text, mode_t mode = 0640) {
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return ReadCredentials(path);
  };
  const auto keys = write(
      "# of the job\n[other]\naws_access_key_id=x\n[default]\naws_access_key_id = AK\r\n"
      "aws_secret_access_key=s/+=\naws_session_token = t\n[more]\naws_secret_access_key=y\n");
  REQUIRE(keys.ok());
  CHECK(keys->access_key_id == "AK");
  CHECK(keys->secret_access_key == "s/+=");
  CHECK(keys->session_token == "t");
  CHECK_THAT(ToString(write("aws_access_key_id=AK\n").status()),
             Contains("expected aws_access_key_id and aws_secret_access_key, and one is missing"));
  CHECK_THAT(ToString(write("aws_access_key_id=A K\naws_secret_access_key=y\n").status()),
             Contains("blanks or unusual characters"));
  CHECK_THAT(ToString(write("aws_access_key_id=A\naws_secret_access_key=y\n", 0644).status()),
             Contains("only its owner and group can read, found mode 0644"));
  CHECK(absl::IsNotFound(ReadCredentials(folder.File("missing")).status()));
}

}  // namespace
}  // namespace dws::s3
