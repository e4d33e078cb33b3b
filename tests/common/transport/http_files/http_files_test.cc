// Files of a server that answers as it is told. tests/integration/regions has whole daemons and
// several servers.
#include <atomic>
#include <catch2/catch.hpp>
#include <span>

#include "common/model/limits.h"
#include "common/transport/http_files/http_file_system.h"
#include "common/transport/http_files/listing.h"
#include "tests/fakes/reply_server.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using http_files::ParseListing;

// Files below "URL/dws", whose ETag is "e" and whose bytes are these.
struct Place {
  explicit Place(ReplyServer::Answer answer) : server(std::move(answer)) {
    auto made = HttpFileSystem::Create({.url = root(),
                                        .reads = &reads,
                                        .attempt = std::chrono::milliseconds(500),
                                        .retry_delay = std::chrono::milliseconds(1)});
    REQUIRE(made.ok());
    files = *std::move(made);
  }
  std::string root() const { return server.url() + "/dws"; }
  Result<std::string> Read(uint64_t offset, uint64_t size) const {
    DWS_ASSIGN_OR_RETURN(const auto file, files->OpenForRead(root() + "/f"));
    std::string bytes(size, '\0');
    DWS_ASSIGN_OR_RETURN(
        const size_t got,
        file->ReadAt(offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    bytes.resize(got);
    return bytes;
  }
  size_t gets() const {
    const auto all = server.requests();
    return static_cast<size_t>(
        std::ranges::count_if(all, [](const auto& each) { return each.starts_with("GET"); }));
  }

  ReplyServer server;
  Cancellation reads;
  std::unique_ptr<HttpFileSystem> files;
};

std::string Head(uint64_t size, const std::string& etag = "e") {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\nETag: {}\r\n\r\n", size, etag);
}
bool IsHead(const std::string& request) { return request.starts_with("HEAD"); }

TEST_CASE("a file is read in ranges", "[http_files]") {
  const Place place([](const std::string& request) {
    if (IsHead(request)) return Head(10);
    const bool right = request.find("Range: bytes=2-4\r\n") != std::string::npos;
    return right ? ReplyServer::Reply(206, "cde", "ETag: e\r\n") : ReplyServer::Reply(400, "");
  });
  CHECK(*place.Read(2, 3) == "cde");
}

TEST_CASE("a file that was replaced since it was opened is said to be another", "[http_files]") {
  const Place place([](const std::string& request) {
    return IsHead(request) ? Head(10, "old") : ReplyServer::Reply(206, "cde", "ETag: new\r\n");
  });
  const Status other = place.Read(2, 3).status();
  CHECK(absl::IsDataLoss(other));
  CHECK_THAT(ToString(other), Contains("expected ETag old as when it was opened, found new"));
  CHECK(place.gets() == 1);
}

TEST_CASE("what came short and what is overloaded is asked for three times", "[http_files]") {
  const std::string reply = GENERATE(ReplyServer::Reply(503, ""), ReplyServer::Reply(429, ""),
                                     ReplyServer::Reply(206, "c", "ETag: e\r\n"), "");
  std::atomic<size_t> asked{0};
  const Place place([&](const std::string& request) {
    if (IsHead(request)) return Head(10);
    return ++asked == 3 ? ReplyServer::Reply(206, "cde", "ETag: e\r\n") : reply;
  });
  CHECK(*place.Read(2, 3) == "cde");
  const Place never([&](const std::string& request) { return IsHead(request) ? Head(10) : reply; });
  CHECK(absl::IsUnavailable(never.Read(2, 3).status()));
  CHECK(never.gets() == 3);
}

TEST_CASE("a list that makes no sense is asked for again", "[http_files]") {
  std::atomic<int> asked{0};
  const Place place([&](const std::string&) {
    return ReplyServer::Reply(200, ++asked < 3 ? "<html>" : R"([{"name": "a"}])");
  });
  CHECK(*place.files->List(place.root()) == std::vector<std::string>{"a"});
}

TEST_CASE("a server without ranges is named and takes no memory", "[http_files]") {
  // Only the head of what would be 1 GB comes.
  const Place place([](const std::string&) { return Head(1'000'000'000); });
  const Status none = place.Read(0, 1 << 20).status();
  CHECK(absl::IsPermissionDenied(none));
  CHECK_THAT(ToString(none), Contains("larger than 1048576 bytes: the server must answer ranges"));
  CHECK(place.gets() == 1);
  const Status large = place.files->ReadFile(place.root() + "/f", 1 << 20).status();
  CHECK(absl::IsPermissionDenied(large));
  CHECK_THAT(ToString(large), Contains("larger than 1048576 bytes"));
  // An error's own words may be longer than what is asked for.
  const Place wordy([](const std::string& request) {
    return IsHead(request) ? Head(10) : ReplyServer::Reply(404, std::string(5000, 'x'));
  });
  CHECK(absl::IsNotFound(wordy.Read(2, 3).status()));
}

TEST_CASE("a server that hangs costs its time once", "[http_files]") {
  const bool itself = GENERATE(true, false);  // else its gateway answers for it
  const Place place([&](const std::string&) {
    return itself ? std::nullopt : std::optional(ReplyServer::Reply(504, ""));
  });
  CHECK(absl::IsDeadlineExceeded(place.files->List(place.root()).status()));
  CHECK(place.gets() == 1);
}

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
