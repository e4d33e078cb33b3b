// The parts that need no server. tests/integration/regions has whole daemons and several.
#include <catch2/catch.hpp>

#include "common/model/limits.h"
#include "common/transport/http_files/http_file_system.h"
#include "common/transport/http_files/listing.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using http_files::ParseListing;

TEST_CASE("a list of a folder is read as nginx writes it", "[http_files]") {
  const auto names = ParseListing(
      "[\r\n{ \"name\":\"stream-1\", \"type\":\"directory\", \"mtime\":\"Sun, 29 Nov 2026 "
      "16:33:31 GMT\" },\r\n{ \"name\":\"a%20b\", \"type\":\"file\", \"mtime\":\"x\", "
      "\"size\":8 }\r\n]");
  REQUIRE(names.ok());
  CHECK(*names == std::vector<std::string>{"a%20b", "stream-1"});
  CHECK(ParseListing("[]")->empty());
}

TEST_CASE("what is no list of a folder is refused", "[http_files]") {
  const std::string deep(20, '[');
  for (const std::string text :
       {"", "<html>", "{}", "[", "[1]", "[{}]", "[{\"name\":1}]", "[{\"name\":\"\"}]",
        "[{\"name\":\"..\"}]", "[{\"name\":\".\"}]", "[{\"name\":\"a/b\"}]",
        "[{\"name\":\"a\\nb\"}]", "[{\"name\":\"a\",\"name\":\"b\"}]", "[{\"name\":\"\xff\"}]",
        "[] x"}) {
    INFO(text);
    CHECK(absl::IsUnavailable(ParseListing(text).status()));
  }
  CHECK(absl::IsUnavailable(ParseListing(deep).status()));
  CHECK(
      absl::IsUnavailable(ParseListing("[{\"name\":\"" + std::string(256, 'n') + "\"}]").status()));
  CHECK_THAT(ToString(ParseListing("<html>").status()), Contains("autoindex_format json"));
}

TEST_CASE("a list that is too long is refused", "[http_files]") {
  std::string many = "[{\"name\":\"a\"}";
  for (size_t i = 0; i < limits::kSharedFoldersMax; ++i) many += ",{\"name\":\"a\"}";
  CHECK_THAT(ToString(ParseListing(many + "]").status()), Contains("65537 names"));
  CHECK_THAT(ToString(ParseListing("[" + std::string(size_t{32} << 20, ' ') + "]").status()),
             Contains("bytes"));
}

TEST_CASE("an HTTP server is a URL of a folder", "[http_files]") {
  for (const std::string url : {"https://cache.eu.example/dws", "https://h:8443",
                                "http://127.0.0.1:80/a/b", "http://[::1]:1/x"}) {
    INFO(url);
    CHECK(IsHttpBase(url));
    CHECK(CheckHttpBase(url, false).ok());
  }
  CHECK_FALSE(IsHttpBase("/mnt/https://"));
  CHECK_FALSE(IsHttpBase("s3://bucket"));
  for (const std::string url :
       {"https://", "https://h/a/", "https://h/", "https://h/a%20b", "https://h/../a",
        "https://h/a//b", "https://h/a?b", "https://u@h/a"}) {
    INFO(url);
    CHECK(absl::IsInvalidArgument(CheckHttpBase(url, true)));
  }
  CHECK_THAT(ToString(CheckHttpBase("http://10.0.0.9/a", false)),
             Contains("would travel unencrypted from http://10.0.0.9:80/a: use https"));
  CHECK(CheckHttpBase("http://10.0.0.9/a", true).ok());
}

TEST_CASE("nothing is written, and nothing is read elsewhere", "[http_files]") {
  Cancellation reads;
  const auto files = HttpFileSystem::Create({.url = "http://127.0.0.1:1/a", .reads = &reads});
  REQUIRE(files.ok());
  HttpFileSystem& http = **files;
  const std::string path = "http://127.0.0.1:1/a/b";
  for (const Status& refused :
       {http.ReplaceFile(path, {}), http.Rename(path, path), http.MakeFolders(path),
        http.Remove(path), http.RemoveFolder(path), http.Create(path).status(),
        http.OpenForAppend(path).status(), http.Lock(path).status()}) {
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK_THAT(ToString(refused), Contains(path));
  }
  CHECK(absl::IsInvalidArgument(http.ReadFile("http://127.0.0.1:1/ab", 1).status()));
  CHECK(absl::IsInvalidArgument(http.List("/etc").status()));
  reads.Cancel();
  CHECK(absl::IsCancelled(http.OpenForRead(path).status()));
}

}  // namespace
}  // namespace dws
