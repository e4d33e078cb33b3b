// A sender of this host that passes a snapshot, or garbage, and a receiver that maps it.
#include "common/sources/same_host/host_snapshot.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/proto_convert/convert.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/handle_socket.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/same_host/host_id.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr StreamId kStream{.incarnation = 3, .id_hi = 1, .id_lo = 2};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uid_t kNobody = 65534;

RankLayout LayoutOf(uint64_t elements) {
  auto layout =
      RankLayout::Create({Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {elements}}),
                          Shard::Whole({.name = "b", .dtype = DType::kF32, .shape = {33}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

UniqueFd MemoryFile(size_t size, int seals) {
  UniqueFd file(::memfd_create("garbage", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(size)) == 0);
  REQUIRE(::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

// Passes what a case puts into `files`, over a real handle socket.
class Sender final : public v1::SyncService::Service {
 public:
  explicit Sender(uint64_t elements = 100'001)
      : layout(LayoutOf(elements)), memory(*SnapshotMemory::Create(layout)) {
    for (size_t i = 0; i < memory->content().size(); ++i) {
      memory->content()[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
    files.push_back(*memory->ReadOnlyDescriptor());
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    stub = v1::SyncService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                        grpc::InsecureChannelCredentials()));
    Listen();
  }
  ~Sender() override { server_->Shutdown(std::chrono::system_clock::now()); }

  void Listen() {
    handles.reset();
    auto listening = HandleSocket::Listen({.path = folder.File("handles")});
    REQUIRE(listening.ok());
    handles = *std::move(listening);
  }

  grpc::Status OpenSnapshot(grpc::ServerContext*, const v1::OpenSnapshotRequest* request,
                            v1::OpenSnapshotReply* reply) override {
    asked.push_back(*request);
    reply->set_snapshot(memory->id());
    if (request->mapped() == reply->snapshot()) return grpc::Status::OK;
    const auto pass = [this](const std::vector<UniqueFd>&, const UniqueFd& connection) -> Status {
      ++taken;
      std::vector<int> descriptors;
      for (const UniqueFd& file : files) descriptors.push_back(file.get());
      if (silent) return CancelledError("gone");
      return SendDescriptorMessage(connection, AsBytes("snapshot"), descriptors);
    };
    const auto expected =
        handles->Expect({.on_descriptors = pass, .on_hangup = [](const Status&) {}});
    if (!expected.ok()) return {grpc::StatusCode::INTERNAL, "no registration"};
    reply->set_token(expected->token.data(), expected->token.size() - token_lacks);
    reply->set_handle_socket(path.empty() ? handles->path() : path);
    return grpc::Status::OK;
  }

  Result<MappedSnapshot> Open(HostSnapshot& host) {
    return host.Open(
        *stub, calls, [this](const grpc::ClientContext&) { return peer; }, kStream, layout);
  }
  // What a receiver that trusts everybody says.
  Status Refusal() {
    HostSnapshot host({.users = {}});
    return Open(host).status();
  }

  const RankLayout layout;
  const std::unique_ptr<SnapshotMemory> memory;
  std::vector<UniqueFd> files;
  bool silent = false;        // the handle socket passes nothing
  size_t token_lacks = 0;     // bytes
  std::string path;           // of another handle socket
  Status peer;                // of the connection's check
  std::atomic<int> taken{0};  // by clients that knew the token
  std::vector<v1::OpenSnapshotRequest> asked;
  TempFolder folder;
  std::unique_ptr<HandleSocket> handles;
  ActiveCalls calls;
  std::unique_ptr<v1::SyncService::Stub> stub;

 private:
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("a snapshot is mapped once, and again after it was let go of", "[same_host]") {
  Sender sender;
  HostSnapshot host({.users = {}});
  const auto mapped = sender.Open(host);
  INFO(ToString(mapped.status()));
  REQUIRE(mapped.ok());
  const ByteSpan there = sender.memory->content();
  CHECK(std::equal(there.begin(), there.end(), (*mapped)->content().begin()));
  REQUIRE(sender.asked.size() == 1);
  CHECK(sender.asked[0].host() == HostId());
  CHECK(*FromProto(sender.asked[0].stream()) == kStream);
  CHECK(FromProto(sender.asked[0].layout_signature()) == sender.layout.signature());
  CHECK(sender.asked[0].mapped() == 0);

  const auto again = sender.Open(host);
  REQUIRE(again.ok());
  CHECK(*again == *mapped);
  CHECK(sender.asked[1].mapped() == sender.memory->id());
  CHECK(sender.taken == 1);

  host.Forget();
  const auto anew = sender.Open(host);
  REQUIRE(anew.ok());
  CHECK(*anew != *mapped);
  CHECK(sender.asked[2].mapped() == 0);
  CHECK(sender.taken == 2);
}

TEST_CASE("what is mapped of one layout is not taken for another", "[same_host]") {
  Sender sender;
  HostSnapshot host({.users = {}});
  REQUIRE(sender.Open(host).ok());
  const auto other = host.Open(
      *sender.stub, sender.calls, [](const grpc::ClientContext&) { return OkStatus(); }, kStream,
      LayoutOf(500'000));
  CHECK(sender.asked[1].mapped() == 0);
  CHECK(absl::IsInvalidArgument(other.status()));
}

TEST_CASE("descriptors that are no snapshot of the layout are not mapped", "[same_host]") {
  Sender sender;
  const size_t size = sender.memory->places().size_bytes();
  sender.files.clear();
  std::string why;
  SECTION("a file") {
    const std::string path = sender.folder.File("file");
    sender.files.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(::ftruncate(sender.files[0].get(), static_cast<off_t>(size)) == 0);
    why = "can be made smaller while it is read";
  }
  SECTION("a folder") {
    sender.files.emplace_back(::open(sender.folder.path().c_str(), O_RDONLY | O_CLOEXEC));
    why = fmt::format("its layout needs {}", size);
  }
  SECTION("a device") {
    sender.files.emplace_back(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
    why = fmt::format("has 0 bytes, its layout needs {}", size);
  }
  SECTION("a pipe") {
    int ends[2] = {};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    sender.files.emplace_back(ends[0]);
    const UniqueFd other(ends[1]);
    why = fmt::format("has 0 bytes, its layout needs {}", size);
  }
  SECTION("memory that is not sealed") {
    sender.files.push_back(MemoryFile(size, 0));
    why = "can be made smaller while it is read";
  }
  SECTION("memory that is sealed against growing only") {
    sender.files.push_back(MemoryFile(size, F_SEAL_GROW));
    why = "can be made smaller while it is read";
  }
  SECTION("memory without the stamps") {
    sender.files.push_back(MemoryFile(sender.memory->places().stamps_offset(), kSeals));
    why = fmt::format("its layout needs {}", size);
  }
  SECTION("memory that lacks a stamp") {
    sender.files.push_back(MemoryFile(size - sizeof(BlockStamp), kSeals));
    why = fmt::format("has {} bytes, its layout needs {}", size - sizeof(BlockStamp), size);
  }
  SECTION("memory with a stamp too many") {
    sender.files.push_back(MemoryFile(size + sizeof(BlockStamp), kSeals));
    why = fmt::format("has {} bytes, its layout needs {}", size + sizeof(BlockStamp), size);
  }
  const Status refused = sender.Refusal();
  REQUIRE(absl::IsInvalidArgument(refused));
  CHECK_THAT(std::string(Message(refused)), Contains(why));
  CHECK(sender.taken == 1);
}

TEST_CASE("an answer that is not one descriptor of the sender's snapshot is refused",
          "[same_host]") {
  Sender sender;
  std::string why;
  SECTION("none") {
    sender.files.clear();
    why = "answers 'snapshot' with 0 descriptors";
  }
  SECTION("two") {
    sender.files.push_back(*sender.memory->ReadOnlyDescriptor());
    why = "answers 'snapshot' with 2 descriptors";
  }
  SECTION("an error") {
    sender.silent = true;
    why = "answers 'error: gone' with 0 descriptors";
  }
  SECTION("the right memory of another snapshot") {
    const auto other = SnapshotMemory::Create(sender.layout);
    REQUIRE(other.ok());
    sender.files[0] = *(*other)->ReadOnlyDescriptor();
    why = "passed another snapshot than the sender's";
  }
  SECTION("a socket that is not there") {
    sender.path = sender.folder.File("nothing");
    why = "the sender's handle socket cannot be reached";
  }
  const Status refused = sender.Refusal();
  REQUIRE(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(Message(refused)), Contains(why));
}

TEST_CASE("a socket that is silent, or hangs up, is tried again later", "[same_host]") {
  Sender sender;
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  sender.path = sender.folder.File("other");
  auto listening = UnixAcceptor::Listen(sender.path, SOCK_SEQPACKET, epoll);
  REQUIRE(listening.ok());
  Status refused;
  SECTION("silent") {
    refused = sender.Refusal();
    CHECK_THAT(std::string(Message(refused)), Contains("handle socket does not answer"));
  }
  SECTION("gone") {
    std::thread closing([&] {
      while (!listening->Accept(RealClock().Now()).has_value()) std::this_thread::yield();
    });
    refused = sender.Refusal();
    closing.join();
  }
  CHECK(absl::IsUnavailable(refused));
}

TEST_CASE("a token of another size goes to nobody", "[same_host]") {
  Sender sender;
  sender.token_lacks = 1;
  const Status refused = sender.Refusal();
  REQUIRE(absl::IsDataLoss(refused));
  CHECK_THAT(std::string(Message(refused)), Contains("a token of 15 bytes, expected 16"));
  CHECK(sender.taken == 0);
}

TEST_CASE("a peer that is not the sender is refused before its socket is used", "[same_host]") {
  Sender sender;
  sender.peer = AbortedError("another identity");
  CHECK(sender.Refusal() == sender.peer);
  CHECK(sender.taken == 0);
}

TEST_CASE("the owner of the handle socket must be trusted", "[same_host]") {
  Sender sender;
  REQUIRE(::chmod(sender.folder.path().c_str(), 0777) == 0);
  if (::geteuid() != 0 || ::seteuid(kNobody) != 0) {
    WARN("skipped: only root, outside a sandbox, can make another user's socket");
    return;
  }
  sender.Listen();
  REQUIRE(::seteuid(0) == 0);
  HostSnapshot strict({.users = AllowedUsers::Only({})});
  const Status refused = sender.Open(strict).status();
  REQUIRE(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(Message(refused)),
             Contains("the sender's handle socket: ") && Contains(std::to_string(kNobody)));
  CHECK(sender.taken == 0);  // it has not even got the token
  HostSnapshot trusting({.users = AllowedUsers::Only({kNobody})});
  CHECK(sender.Open(trusting).ok());
  CHECK(sender.taken == 1);
}

}  // namespace
}  // namespace dws
