// A trainer's session with a real handle socket and real shared memory; only the ledger's disk is a
// fake.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "common/proto_convert/convert.h"
#include "sender_daemon/trainer/trainer_session.h"
#include "tests/fakes/memory_version_ledger.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

inline constexpr std::chrono::seconds kTimeout{20};

// A trainer's end of the handle socket: sends one descriptor and keeps the connection open.
class HandleClient {
 public:
  std::string Send(const std::string& path, const std::string& token, int fd) {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    std::string payload = token + std::string("\x01\x00\x00\x00", 4);
    iovec part{.iov_base = payload.data(), .iov_len = payload.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    REQUIRE(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) > 0);
    char answer[512] = {};
    const ssize_t size = ::recv(socket_.get(), answer, sizeof(answer), 0);
    return {answer, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }
  void HangUp() { socket_.reset(); }
  // Asserts nothing, so it may be called from any thread.
  bool Shut() { return ::shutdown(socket_.get(), SHUT_WR) == 0; }
  // Returns whether the sender's side ends within the timeout.
  bool Ended(std::chrono::milliseconds timeout) {
    pollfd events{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&events, 1, static_cast<int>(timeout.count())) == 1;
  }

 private:
  UniqueFd socket_;
};

// A session with everything it needs; calls run on its executor.
class Fixture {
 public:
  // `devices`: as TrainerSession::Parts has them.
  explicit Fixture(cuda::CudaDevices* devices = nullptr) {
    char folder[] = "/tmp/dws-session-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    folder_ = folder;
    auto handles = HandleSocket::Listen({.path = folder_ + "/handles"});
    REQUIRE(handles.ok());
    handles_ = *std::move(handles);
    devices_ = devices;
    Start();
  }
  ~Fixture() {
    handles_.reset();
    executor_.Stop();
    pipeline_.Stop();
    std::filesystem::remove_all(folder_);
  }

  template <typename Fn>
  auto Run(Fn fn) {
    std::promise<decltype(fn(*session_))> result;
    REQUIRE(executor_.Post([&] { result.set_value(fn(*session_)); }));
    return result.get_future().get();
  }
  // As a new process of the sender, with the ledger of the one before.
  void Restart() {
    Run([this](TrainerSession&) {
      Start();
      return true;
    });
  }

  // Runs on the session's own thread, as all code that uses the snapshot does.
  Weights Snapshot() {
    return Run([this](TrainerSession&) { return SnapshotWeights(*state_); });
  }
  Result<v1::RegisterReply> Register(const v1::RegisterRequest& request) {
    return Run([&](TrainerSession& session) { return session.Register(request); });
  }
  Result<v1::PublishReply> Publish(uint64_t session_id, uint64_t version) {
    v1::PublishRequest request;
    request.set_session(session_id);
    request.set_version(version);
    return Run([&](TrainerSession& session) {
      return session.Publish(request, [this] { return wanted_-- > 0; });
    });
  }
  // Registers and hands the region over.
  uint64_t Attach(const v1::RegisterRequest& request, const UniqueFd& region,
                  HandleClient& client) {
    const auto reply = Register(request);
    REQUIRE(reply.ok());
    REQUIRE(client.Send(reply->handle_socket(), reply->token(), region.get()) == "ok");
    return reply->session();
  }

  void Start() {
    session_.reset();
    session_.emplace(
        TrainerSession::Options{.job_id = "job",
                                .log_limits = {.bytes_max = uint64_t{1} << 30, .versions_max = 10}},
        TrainerSession::Parts{
            .clock = &clock_,
            .executor = &executor_,
            .pool = &pool_,
            .handles = handles_.get(),
            .ledger = &ledger_,
            .pipeline = &pipeline_,
            .drain = &drain_,
            .devices = devices_,
            .on_state = [this](RankStatePtr state) { state_ = std::move(state); },
            .on_gone =
                [this] {
                  if (!told_gone_.exchange(true)) gone_.set_value();
                },
            .on_replacing = [this] { on_replacing_(); },
            .on_refined = [this](RankStatePtr state) { state_ = std::move(state); }});
  }

  std::string folder_;
  cuda::CudaDevices* devices_ = nullptr;
  RealClock clock_;
  Executor executor_{1, 100};
  ThreadPool pool_{1};
  MemorySenderLedger* const memory_ledger_ = new MemorySenderLedger;  // owned by the next
  SharedSenderLedger ledger_{std::unique_ptr<SenderLedger>(memory_ledger_)};
  DrainSwitch drain_;
  PublishPipeline pipeline_{
      {.record =
           [this](const RankState& state, const RetainedVersion& version) {
             return ledger_.Record(VersionPublished{.stream = state.stream,
                                                    .version = version.version,
                                                    .base = version.base,
                                                    .state_token = version.manifest.state_token});
           },
       .announce = [](const RankStatePtr&) {},
       .on_trouble = [](const Status&) {}}};
  std::unique_ptr<HandleSocket> handles_;
  RankStatePtr state_;
  std::promise<void> gone_;  // the first trainer that hung up
  std::atomic<bool> told_gone_{false};
  std::function<void()> on_replacing_ = [] {};
  int wanted_ = 1'000'000;  // how many more times a call reports that it is still wanted
  std::optional<TrainerSession> session_;
};

inline v1::RegisterRequest Resident(uint64_t incarnation, const RankLayout& layout) {
  v1::RegisterRequest request;
  request.set_job_id("job");
  *request.mutable_stream() =
      ToProto(StreamId{.incarnation = incarnation, .id_hi = 1, .id_lo = incarnation});
  request.set_world_size(1);
  *request.mutable_layout() = ToProto(layout);
  uint64_t offset = 0;
  for (const Shard& shard : layout.shards()) {
    request.mutable_resident()->add_shards()->set_offset_bytes(offset);
    offset += shard.tensor.SizeBytes();
  }
  request.mutable_resident()->add_regions()->set_size_bytes(offset);
  return request;
}

inline RankLayout Layout() {
  return MakeLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {1000, 100}}},
                     {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {77}}}});
}

struct Region {
  explicit Region(uint64_t size) {
    auto created = CreateHostRegion("dws-test", size);
    REQUIRE(created.ok());
    region = std::move(created->region);
    fd = std::move(created->fd);
  }
  void Set(size_t at, int value) { region.mutable_bytes()[at] = static_cast<std::byte>(value); }
  HostRegion region;
  UniqueFd fd;
};

}  // namespace dws
