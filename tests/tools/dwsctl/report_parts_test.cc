// What a report takes out of texts, and what it leaves.
#include "tools/dwsctl/report/redactor.h"

#include <catch2/catch.hpp>

#include "tools/dwsctl/report/daemon_process.h"
#include "tools/dwsctl/report/report.h"
#include "tools/dwsctl/report/settings.h"

namespace dws::dwsctl {
namespace {

TEST_CASE("credentials and queries of URLs are left out", "[report]") {
  const Redactor redactor;
  CHECK(redactor.Clean("get https://user:pa/ss@host:9/path failed") ==
        "get https://(left out)@host:9/path failed");
  CHECK(redactor.Clean("{'url':'http://h/p?sig=abc&x=1','v':'s3://bucket/k'}") ==
        "{'url':'http://h/p?(left out)','v':'s3://bucket/k'}");
  CHECK(redactor.Clean("unix:/run/dws/a.sock 10.0.0.1:7700 a@b") ==
        "unix:/run/dws/a.sock 10.0.0.1:7700 a@b");
  CHECK(redactor.Clean("https://token@host") == "https://(left out)@host");
  CHECK(redactor.Clean("://") == "://");
}

TEST_CASE("what follows the name of a secret is left out", "[report]") {
  const Redactor redactor;
  CHECK(redactor.Clean("Authorization: Bearer abc.def, next") == "Authorization: (left out)");
  CHECK(redactor.Clean("authorization: Basic dXNlcjpwYXNz\nnext") ==
        "authorization: (left out)\nnext");
  CHECK(redactor.Clean("Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c") ==
        "Authorization: (left out)");
  CHECK(redactor.Clean(R"x({"password":"hunter2","api_key": "abcdef12"})x") ==
        R"x({"password":"(left out)","api_key": "(left out)"})x");
  CHECK(redactor.Clean("password = hunter2") == "password = (left out)");
  CHECK(redactor.Clean("PASSWORD=geheim; password: \"x\" secret_key=") ==
        "PASSWORD=(left out); password: \"(left out)\" secret_key=");
  CHECK(redactor.Clean("'state_token':'abcdef0123456789'") == "'state_token':'abcdef0123456789'");
}

TEST_CASE("a secret that was learned is left out everywhere", "[report]") {
  Redactor redactor;
  redactor.Learn("quote\"d-secret");
  redactor.Learn("short");
  CHECK(redactor.Clean("a quote\"d-secret b quote\\\"d-secret short") ==
        "a (left out) b (left out) short");
  redactor.LearnWords("curl --silent version -H 'X-Key: k3y-0123' /etc/dws/path-1");
  CHECK(redactor.Clean("version of /etc/dws/path-1: k3y-0123") ==
        "version of /etc/dws/path-1: (left out)");
  redactor.LearnUrls("http://me:pass-w0rd@proxy");
  CHECK(redactor.Clean("said pass-w0rd") == "said (left out)");
}

TEST_CASE("the longer of two secrets goes first", "[report]") {
  Redactor redactor;
  redactor.Learn("abcdef");
  redactor.Learn("abcdefghij");
  CHECK(redactor.Clean("abcdefghij abcdef") == "(left out) (left out)");
}

TEST_CASE("settings show values of options that are known, and no others", "[report]") {
  Redactor redactor;
  DaemonSettings settings(redactor);
  settings.AddFlags({"dws-sender", "--job-id=j", "--tls-key", "/k.pem", "--insecure",
                     "--shared-after-write=run t0psecret", "--unknown=s3cret-value", "stray-w0rd"});
  settings.AddEnvironment({"DWS_RETAIN_BYTES=4GiB", "DWS_MY_TOKEN=env-t0ken", "HOME=/root",
                           "AWS_SESSION_TOKEN=aws-t0ken", "NCCL_DEBUG=INFO", "EMPTY", "DWS_="});
  settings.AddFile("/c.toml",
                   "# c0mment\njob-id = \"k\"\n[shared]\nafter-write = \"x y-1234567\"\n"
                   "[my]\ntoken = \"file-t0ken\"\n = broken\n");
  CHECK(settings.text() ==
        "# flags\n--job-id = j\n--tls-key = /k.pem\n--insecure = true\n"
        "--shared-after-write = (left out)\n--unknown = (left out)\n(left out)\n"
        "\n# environment\nDWS_RETAIN_BYTES = 4GiB\nDWS_MY_TOKEN = (left out)\n"
        "AWS_SESSION_TOKEN = (left out)\nNCCL_DEBUG = INFO\nDWS_ = (left out)\n"
        "\n# /c.toml\njob-id = k\nshared-after-write = (left out)\nmy-token = (left out)\n"
        "line 7: a mistake; --check-config says which\n");
  CHECK(settings.ValueOf("job-id") == "j");
  CHECK(settings.ValueOf("retain-bytes") == "4GiB");
  CHECK(settings.ValueOf("nothing").empty());
  for (const char* const secret : {"run t0psecret", "t0psecret", "s3cret-value", "stray-w0rd",
                                   "env-t0ken", "aws-t0ken", "y-1234567", "file-t0ken"}) {
    CAPTURE(secret);
    CHECK(redactor.Clean(secret) == kLeftOut);
  }
}

TEST_CASE("a part that is too large is cut, and a missing one says why", "[report]") {
  Report report;
  report.Add("large.txt", std::string(kPartBytesMax + 10, 'x'));
  report.Add("gone.txt", UnavailableError("no http://a:b@c"));
  const auto parts = report.Cleaned();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].text.size() < kPartBytesMax + 100);
  CHECK(parts[0].text.ends_with("[4194304 of 4194314 bytes]\n"));
  CHECK(parts[1].text.ends_with("gone.txt         missing: no http://(left out)@c\n"));
  CHECK(report.SummaryJson("/r").ends_with(
      "{\"name\":\"gone.txt\",\"error\":\"no http://(left out)@c\"}]}\n"));
}

TEST_CASE("a secret that was learned after a part was added is left out of it", "[report]") {
  Report report;
  report.Add("a.txt", std::string("has l4te-secret"));
  report.redactor().Learn("l4te-secret");
  CHECK(report.Cleaned()[0].text == "has (left out)");
}

TEST_CASE("a unit's name is taken from the control group, and nothing else", "[report]") {
  CHECK(UnitOf("0::/system.slice/system-dws\\x2dsender.slice/dws-sender@0.service\n") ==
        "dws-sender@0.service");
  CHECK(UnitOf("0::/user.slice/user-0.slice/session-1.scope\n").empty());
  CHECK(UnitOf("0::/a/dws-$(x).service\n").empty());
  CHECK(UnitOf("").empty());
  CHECK(SplitAtZeros(std::string_view("a\0b c\0\0d", 8)) ==
        std::vector<std::string>{"a", "b c", "", "d"});
}

}  // namespace
}  // namespace dws::dwsctl
