// The reference of the control plane's latency: one unary call to a daemon and two records made
// durable in a folder, timed on request.
//
//   control_probe SENDER FOLDER    then, for each line on stdin, seconds on stdout
#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <string>
#include <system_error>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/model/limits.h"
#include "proto/sync.grpc.pb.h"

namespace dws::bench {
namespace {

constexpr size_t kRecordBytes = 128;  // about one of a ledger

// There is no such version to describe: only the round trip matters.
bool Call(v1::SyncService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limits::kRpcDeadline);
  v1::DescribeReply reply;
  const grpc::StatusCode code = stub.Describe(&context, {}, &reply).error_code();
  return code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED;
}

bool Record(int fd) {
  const std::array<char, kRecordBytes> record = {};
  return ::write(fd, record.data(), record.size()) == static_cast<ssize_t>(record.size()) &&
         ::fdatasync(fd) == 0;
}

int Main(const std::string& address, const std::string& folder) {
  const auto stub =
      v1::SyncService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const std::string path = folder + "/control_probe";
  const UniqueFd fd(
      ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    fmt::print(stderr, "{}: {}\n", path, std::generic_category().message(errno));
    return 1;
  }
  const RealClock clock;
  std::string line;
  while (std::getline(std::cin, line)) {
    const TimePoint begin = clock.Now();
    if (!Call(*stub) || !Record(fd.get()) || !Record(fd.get())) {
      fmt::print(stderr, "{} does not answer, or {} cannot be written\n", address, path);
      return 1;
    }
    fmt::print("{:.9f}\n", ToSeconds(clock.Now() - begin));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: control_probe HOST:PORT|unix:PATH FOLDER\n");
    return 2;
  }
  return dws::bench::Main(argv[1], argv[2]);
}
