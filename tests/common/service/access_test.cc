#include "common/service/security/access.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "proto/group.pb.h"
#include "proto/objects.pb.h"
#include "proto/sync.pb.h"
#include "proto/train.pb.h"

namespace dws {
namespace {

const Identity kSender = SenderIdentity("job", 3);
const Identity kTrainer = SenderIdentity("job", 3, Role::kTrain);
const Identity kReceiver = ReceiverIdentity("job", "r0");
const Identity kOperator = {.job_id = "job", .role = Role::kOperate, .name = "ann"};

absl::StatusCode Ask(const std::string& path, const std::vector<Identity>& identities) {
  return CheckMethod(path, "job", identities).code();
}

TEST_CASE("each role may call exactly its own methods", "[access]") {
  const auto kYes = absl::StatusCode::kOk;
  const auto kNo = absl::StatusCode::kPermissionDenied;
  for (const std::string method :
       {"SyncService/Sync", "SyncService/OpenGpuCopies", "GroupService/Join"}) {
    INFO(method);
    const std::string path = "/dws.v1." + method;
    CHECK(Ask(path, {kReceiver}) == kYes);
    CHECK(Ask(path, {kSender}) == kNo);
    CHECK(Ask(path, {kOperator}) == kNo);
    CHECK(Ask(path, {kSender, kReceiver}) == kYes);
    CHECK(Ask(path, {ReceiverIdentity("another", "r0")}) == kNo);
    CHECK(Ask(path, {}) == kNo);
  }
  // Senders of other trainer ranks read shards.
  for (const std::string method :
       {"Describe", "Fetch", "FetchFull", "OpenSnapshot", "OpenFabric"}) {
    INFO(method);
    const std::string path = "/dws.v1.SyncService/" + method;
    CHECK(Ask(path, {kReceiver}) == kYes);
    CHECK(Ask(path, {kSender}) == kYes);
    CHECK(Ask(path, {kOperator}) == kNo);
    CHECK(Ask(path, {SenderIdentity("another", 3)}) == kNo);
    CHECK(Ask(path, {ReceiverIdentity("another", "r0")}) == kNo);
    CHECK(Ask(path, {}) == kNo);
  }
  for (const std::string method :
       {"TrainService/Train", "TrainService/FetchPiece", "TrainService/OpenOutbox",
        "TrainService/OpenHostCopy", "PeerObjectService/Fetch"}) {
    INFO(method);
    const std::string path = "/dws.v1." + method;
    CHECK(Ask(path, {kSender, kTrainer}) == kYes);
    CHECK(Ask(path, {kSender, kReceiver, kOperator}) == kNo);
    CHECK(Ask(path, {SenderIdentity("another", 3, Role::kTrain)}) == kNo);
  }
  for (const std::string method : {"Status", "Watch"}) {
    const std::string path = "/dws.v1.AdminService/" + method;
    for (const Identity& identity : {kSender, kReceiver, kOperator}) {
      CHECK(Ask(path, {identity}) == kYes);
    }
    CHECK(Ask(path, {{.job_id = "another", .role = Role::kOperate, .name = "ann"}}) == kNo);
    CHECK(Ask(path, {}) == kNo);
  }
  for (const std::string method :
       {"Verify", "Resync", "Drain", "Evict", "ForgetStream", "Boundary"}) {
    const std::string path = "/dws.v1.AdminService/" + method;
    CHECK(Ask(path, {kOperator}) == kYes);
    CHECK(Ask(path, {kSender, kReceiver}) == kNo);
    // An operator of another job that has another role in this job.
    CHECK(Ask(path, {kReceiver, {.job_id = "another", .role = Role::kOperate, .name = "ann"}}) ==
          kNo);
  }
  CHECK(Ask("/grpc.health.v1.Health/Check", {}) == kYes);
  CHECK(Ask("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {}) == kYes);
}

TEST_CASE("over plain TCP every method except orders may be called", "[access]") {
  for (const MethodAccess& row : AccessTable()) {
    INFO(row.path);
    const Status status = CheckPlainMethod(row.path);
    CHECK(status.ok() == (row.access != CallAccess::kOperate));
    if (row.access != CallAccess::kOperate) continue;
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
    CHECK_THAT(std::string(Message(status)), Catch::Contains("dwsctl --socket"));
  }
  CHECK(absl::IsUnimplemented(CheckPlainMethod("/dws.v1.TrainerService/Register")));
  CHECK(absl::IsUnimplemented(CheckPlainMethod("")));
}

TEST_CASE("a method that is not in the table is refused for every role", "[access]") {
  for (const std::string path :
       {"", "/", "/dws.v1.SyncService/", "/dws.v1.SyncService/Sync/", "/dws.v1.SyncService/sync",
        "dws.v1.SyncService/Sync", "/dws.v1.TrainerService/Register",
        "/dws.v1.EngineService/Attach", "/dws.v1.ObjectService/Put",
        "/dws.v1.AdminService/Shutdown", "/grpc.health.v1.HealthX/Check"}) {
    INFO(path);
    CHECK(Ask(path, {kSender, kReceiver, kOperator}) == absl::StatusCode::kUnimplemented);
  }
}

// Fails when a new method is missing in the table or a removed one is still in it.
TEST_CASE("the table has exactly the methods that daemons serve over TCP", "[access]") {
  std::vector<std::string> wanted = {"/grpc.health.v1.Health/",
                                     "/grpc.reflection.v1alpha.ServerReflection/"};
  for (const auto* file : {v1::StatusReply::descriptor()->file(), v1::SyncUp::descriptor()->file(),
                           v1::GroupUp::descriptor()->file(), v1::TrainUp::descriptor()->file(),
                           v1::ObjectChunk::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      if (service->name() == "ObjectService") continue;  // of unix sockets
      for (int m = 0; m < service->method_count(); ++m) {
        wanted.push_back("/" + service->full_name() + "/" + service->method(m)->name());
      }
    }
  }
  std::vector<std::string> found;
  for (const MethodAccess& row : AccessTable()) found.emplace_back(row.path);
  std::sort(wanted.begin(), wanted.end());
  std::sort(found.begin(), found.end());
  CHECK(found == wanted);
}

TEST_CASE("a refusal names the needed role and the identity of the caller", "[access]") {
  const Status refused = CheckMethod("/dws.v1.AdminService/Drain", "job", std::vector{kReceiver});
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("operate") &&
                                                Catch::Contains("dws://job/receive/r0") &&
                                                Catch::Contains("'job'"));
}

TEST_CASE("a verified peer has only the identities of its certificate", "[access]") {
  const Peer peer{.verified = true, .identities = {kOperator, kReceiver}};
  CHECK(CheckPeer(peer, kReceiver, "receiver 'r0'").ok());
  const Status other = CheckPeer(peer, ReceiverIdentity("job", "r1"), "receiver 'r1'");
  CHECK(other.code() == absl::StatusCode::kPermissionDenied);
  CHECK_THAT(std::string(Message(other)),
             Catch::Contains("receiver 'r1'") && Catch::Contains("dws://job/receive/r1"));
  CHECK_FALSE(CheckPeer(peer, ReceiverIdentity("another", "r0"), "x").ok());
  CHECK_FALSE(CheckPeer({.verified = true, .identities = {}}, kReceiver, "x").ok());
  CHECK(CheckPeer({.verified = false, .identities = {}}, kReceiver, "x").ok());
}

TEST_CASE("a verified peer has only the roles of its certificate in the job", "[access]") {
  const Peer peer{.verified = true, .identities = {kOperator, kReceiver}};
  CHECK(CheckPeerRole(peer, "job", Role::kReceive, "the leader").ok());
  CHECK(CheckPeerRole(peer, "job", Role::kOperate, "the leader").ok());
  CHECK(CheckPeerRole({.verified = false, .identities = {}}, "job", Role::kReceive, "x").ok());
  CHECK_FALSE(CheckPeerRole(peer, "another", Role::kReceive, "the leader").ok());
  const Status refused = CheckPeerRole(peer, "job", Role::kPublish, "the leader at h:1");
  CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("the leader at h:1") &&
                                                Catch::Contains("publish") &&
                                                Catch::Contains("dws://job/operate/ann"));
}

}  // namespace
}  // namespace dws
