// A gRPC server in this process that answers like a daemon, and running dwsctl's command line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "tools/dwsctl/base/exit_code.h"

namespace dws::dwsctl {

// The server's answers. Set before the first call.
struct FakeAnswers {
  FakeAnswers();  // a receiver, ready, at version 12

  v1::StatusReply reply;
  int error_code = 0;  // of every call, a grpc::StatusCode; 0 = none
  std::string error;
  std::vector<v1::OperationProgress> progress;  // of all operations
  bool hang = false;         // operations do not end after the last of `progress`
  v1::ResyncRequest resync;  // what they were called with
  v1::DrainRequest drain;
  v1::EvictRequest evict;
  v1::ForgetStreamRequest forget;
  int calls = 0;  // operations begun
};

// Lifecycle: listens on a TCP port and on `socket` until the destructor.
class FakeDaemon {
 public:
  explicit FakeDaemon(const std::string& socket);
  ~FakeDaemon();

  std::string address() const;
  FakeAnswers answers;

 private:
  class Service;
  int port_ = 0;
  std::unique_ptr<Service> service_;
  struct Server;
  std::unique_ptr<Server> server_;
};

struct Ran {
  ExitCode code = ExitCode::kUsage;
  std::string out;
  std::string error;
};

// Runs a command line as main does, without a terminal. Throws CLI::ParseError when the line is
// wrong.
Ran RunLine(const std::string& line);

}  // namespace dws::dwsctl
