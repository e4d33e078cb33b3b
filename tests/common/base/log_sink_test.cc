// A log that cannot be written does not block its writer, and lost lines are counted.
#include "common/base/log/log_sink.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>

#include "common/base/unique_fd.h"

namespace dws {
namespace {

struct Ends {
  UniqueFd read;
  UniqueFd write;
};

Ends Pipe() {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  return {.read = UniqueFd(fds[0]), .write = UniqueFd(fds[1])};
}

std::string ReadAll(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t size = ::read(fd, text.data(), text.size());
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_CASE("a full pipe costs one short wait and takes lines again once it is read", "[log]") {
  const Ends pipe = Pipe();
  LogSink sink(pipe.write.get());
  const std::string line(4000, 'x');
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < 10'000; ++i) sink.Write(line);
  });
  CHECK(seconds < 10.0);  // 10,000 waits would be 500 s
  CHECK(sink.lost_lines() > 9'000);
  CHECK_FALSE(sink.Ready());
  std::string text = ReadAll(pipe.read.get());
  CHECK(text.size() % 4001 == 0);  // whole lines
  CHECK(sink.Ready());
  sink.Write("again");
  CHECK(sink.lost_lines() == 0);
  CHECK(ReadAll(pipe.read.get()) == "again\n");
}

TEST_CASE("a pipe without a reader loses lines and does not end the process", "[log]") {
  std::signal(SIGPIPE, SIG_IGN);
  Ends pipe = Pipe();
  LogSink sink(pipe.write.get());
  pipe.read.reset();
  for (int i = 0; i < 100; ++i) sink.Write("line");
  CHECK(sink.lost_lines() == 100);
}

TEST_CASE("a closed descriptor loses lines and does not end the process", "[log]") {
  Ends pipe = Pipe();
  LogSink sink(pipe.write.get());
  pipe.write.reset();
  sink.Write("line");
  CHECK(sink.lost_lines() == 1);
}

TEST_CASE("a full journal socket does not block the writer", "[log]") {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  LogSink sink(ours.get());
  sink.Write("first");
  CHECK(ReadAll(theirs.get()) == "first\n");
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < 2000; ++i) sink.Write(std::string(4000, 'x'));
  });
  CHECK(seconds < 10.0);
  CHECK(sink.lost_lines() > 0);
  // A line that the full buffer cut off is ended before the next line is written.
  while (!ReadAll(theirs.get()).empty() && !sink.Ready()) {
  }
  sink.Write("last");
  std::string text;
  while (text.find("last\n") == std::string::npos) text += ReadAll(theirs.get());
  CHECK((text == "last\n" || text.find("\nlast\n") != std::string::npos));
}

TEST_CASE("a full disk loses lines and nothing else", "[log]") {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full.valid());
  LogSink sink(full.get());
  sink.Write("line");
  CHECK(sink.lost_lines() == 1);
}

}  // namespace
}  // namespace dws
