// The trainer's session with a real handle socket and real shared memory; only the ledger's disk is
// a fake.
#include "sender_daemon/trainer_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <future>

#include "common/proto_convert/convert.h"
#include "tests/fakes/memory_version_ledger.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kTimeout{20};

// A trainer's end of the handle socket: sends one descriptor, keeps the connection.
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
  void Shut() { REQUIRE(::shutdown(socket_.get(), SHUT_WR) == 0); }
  // Whether the sender's side ends within that time.
  bool Ended(std::chrono::milliseconds timeout) {
    pollfd events{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&events, 1, static_cast<int>(timeout.count())) == 1;
  }

 private:
  UniqueFd socket_;
};

// A session with everything it needs, and calls on its executor.
class Fixture {
 public:
  Fixture() {
    char folder[] = "/tmp/dws-session-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    folder_ = folder;
    auto handles = HandleSocket::Listen({.path = folder_ + "/handles"});
    REQUIRE(handles.ok());
    handles_ = *std::move(handles);
    session_.emplace(
        TrainerSession::Options{.job_id = "job",
                                .log_limits = {.bytes_max = uint64_t{1} << 30, .versions_max = 10}},
        TrainerSession::Parts{.clock = &clock_,
                              .executor = &executor_,
                              .pool = &pool_,
                              .handles = handles_.get(),
                              .ledger = &ledger_,
                              .pipeline = &pipeline_,
                              .drain = &drain_,
                              .on_state = [this](RankStatePtr state) { state_ = std::move(state); },
                              .on_gone = [this] { gone_.set_value(); }});
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
  // On the session's own thread, as everything that touches the snapshot.
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

  std::string folder_;
  RealClock clock_;
  Executor executor_{1, 100};
  ThreadPool pool_{1};
  SharedSenderLedger ledger_{std::make_unique<MemoryVersionLedger<SenderLedgerState>>()};
  DrainSwitch drain_;
  PublishPipeline pipeline_{
      {.record =
           [this](const RankState& state, const RetainedVersion& version) {
             return ledger_.Append(VersionPublished{.stream = state.stream,
                                                    .version = version.version,
                                                    .base = version.base,
                                                    .state_token = version.manifest.state_token});
           },
       .announce = [](const RankStatePtr&) {},
       .on_trouble = [](const Status&) {}}};
  std::unique_ptr<HandleSocket> handles_;
  RankStatePtr state_;
  std::promise<void> gone_;
  int wanted_ = 1'000'000;  // how often a call is still wanted when asked
  std::optional<TrainerSession> session_;
};

v1::RegisterRequest Resident(uint64_t incarnation, const RankLayout& layout) {
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

RankLayout Layout() {
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

TEST_CASE("a registered region is published and its changes are counted", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  region.Set(10, 1);
  region.Set(11, 1);
  region.Set(100'000, 7);
  const auto second = fixture.Publish(session, 2);
  REQUIRE(second.ok());
  CHECK(second->changed_elements() == 2);
  CHECK(second->total_elements() == 100'077);
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK(fixture.state_->log->Newest()->nnz == 2);
  CHECK(fixture.ledger_.state().last_version() == WeightVersion(2));
}

TEST_CASE("sessions of two processes are not numbered alike", "[trainer_session]") {
  uint64_t first = 0;
  for (int process = 0; process < 2; ++process) {
    Fixture fixture;
    const auto reply = fixture.Register(Resident(1, Layout()));
    REQUIRE(reply.ok());
    const uint64_t distance = reply->session() - first;
    CHECK(std::min(distance, -distance) > 1'000'000);
    first = reply->session();
  }
}

TEST_CASE("a version that does not increase is refused and the newest named", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  CHECK(fixture.Publish(session, 0).status().code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(fixture.Publish(session, 5).ok());
  for (const uint64_t version : {4, 5}) {
    const auto refused = fixture.Publish(session, version);
    CHECK(refused.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(Message(refused.status())).find("publish 6 or higher") != std::string::npos);
  }
}

TEST_CASE("a publish that the trainer gave up leaves no version, whenever it did",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  const Weights before = fixture.Snapshot();
  region.Set(10, 1);
  fixture.wanted_ = GENERATE(0, 1);  // given up before the capture, or while it ran
  CHECK(fixture.Publish(session, 2).status().code() == absl::StatusCode::kCancelled);
  CHECK(fixture.Snapshot() == before);
  CHECK(fixture.state_->snapshot->version() == WeightVersion(1));
  fixture.wanted_ = 2;
  const auto again = fixture.Publish(session, 2);
  REQUIRE(again.ok());
  CHECK(again->changed_elements() == 1);
}

TEST_CASE("a publish whose trainer shuts its connection leaves no version, whenever it does",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  const Weights before = fixture.Snapshot();
  region.Set(10, 1);
  const int shuts_at = GENERATE(1, 2);  // before the capture, or while it runs
  v1::PublishRequest request;
  request.set_session(session);
  request.set_version(2);
  int asked = 0;
  // The call is still wanted, as far as gRPC knows: this process has been stopped for a while.
  const auto published = fixture.Run([&](TrainerSession& s) {
    return s.Publish(request, [&] {
      if (++asked == shuts_at) client.Shut();
      return true;
    });
  });
  CHECK(published.status().code() == absl::StatusCode::kCancelled);
  CHECK(fixture.Snapshot() == before);
  REQUIRE(fixture.gone_.get_future().wait_for(kTimeout) == std::future_status::ready);
}

TEST_CASE("an attempt that was aborted is refused when it arrives later", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  const auto publish = [&](uint64_t attempt) {
    v1::PublishRequest request;
    request.set_session(session);
    request.set_version(1);
    request.set_attempt(attempt);
    return fixture.Run([&](TrainerSession& s) { return s.Publish(request, [] { return true; }); })
        .status()
        .code();
  };
  v1::AbortRequest abort;
  abort.set_session(session);
  abort.set_version(1);
  abort.set_attempt(3);
  CHECK(fixture.Run([&](TrainerSession& s) { return s.Abort(abort); }).code() ==
        absl::StatusCode::kFailedPrecondition);  // nothing is open
  CHECK(publish(2) == absl::StatusCode::kCancelled);
  CHECK(publish(3) == absl::StatusCode::kCancelled);
  CHECK(publish(4) == absl::StatusCode::kOk);
}

TEST_CASE("a registration is told the newest version, recorded or not", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 5).ok());
  CHECK(fixture.Register(Resident(1, Layout()))->last_version() == 5);
  CHECK(fixture.Register(Resident(2, Layout()))->last_version() == 0);
}

TEST_CASE("a shard that begins inside of an element is refused on the handle socket, by name",
          "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_resident()->mutable_shards(1)->set_offset_bytes(200'002);  // of F32
  request.mutable_resident()->mutable_regions(0)->set_size_bytes(Layout().size_bytes() + 4);
  Region region(Layout().size_bytes() + 4);
  const auto reply = fixture.Register(request);
  REQUIRE(reply.ok());
  HandleClient client;
  CHECK(
      client.Send(reply->handle_socket(), reply->token(), region.fd.get()) ==
      "error: tensor 'b': its memory begins at byte 200002: expected a multiple of the 4 bytes of "
      "an element");
}

TEST_CASE("a second registration fences the first trainer", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient first_client;
  const uint64_t first = fixture.Attach(Resident(1, Layout()), region.fd, first_client);
  REQUIRE(fixture.Publish(first, 1).ok());
  HandleClient second_client;
  const uint64_t second = fixture.Attach(Resident(1, Layout()), region.fd, second_client);
  const auto fenced = fixture.Publish(first, 2);
  CHECK(fenced.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(Message(fenced.status())).find("took its place") != std::string::npos);
  // The same stream goes on with its snapshot: the next version is a delta.
  REQUIRE(fixture.Publish(second, 2).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK(fixture.state_->log->Newest()->base == WeightVersion(1));
}

TEST_CASE("a trainer whose registration ends sees its connection end when the memory is let go of",
          "[trainer_session]") {
  HandleClient next_client;  // outlives the fixture, which hears of one end only
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  fixture.Attach(Resident(1, Layout()), region.fd, client);
  std::promise<void> go_on;
  REQUIRE(fixture.executor_.Post([&] { go_on.get_future().wait(); }));
  client.Shut();
  CHECK_FALSE(client.Ended(std::chrono::milliseconds(200)));  // the session has yet to hear of it
  go_on.set_value();
  CHECK(client.Ended(kTimeout));
  const uint64_t next = fixture.Attach(Resident(1, Layout()), region.fd, next_client);
  CHECK(fixture.Publish(next, 1).ok());
}

TEST_CASE("an old trainer that wakes up is refused, a new stream starts afresh",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(7, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 3).ok());
  CHECK(fixture.Register(Resident(6, Layout())).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  v1::RegisterRequest impostor = Resident(7, Layout());
  impostor.mutable_stream()->set_id_lo(99);
  CHECK(fixture.Register(impostor).status().code() == absl::StatusCode::kFailedPrecondition);

  HandleClient next_client;
  const uint64_t next = fixture.Attach(Resident(8, Layout()), region.fd, next_client);
  REQUIRE(fixture.Publish(next, 1).ok());  // numbers start again in a new stream
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK_FALSE(fixture.state_->log->Newest()->base.has_value());
}

TEST_CASE("an incarnation ahead of the clock is refused, and spoils nothing", "[trainer_session]") {
  Fixture fixture;
  const auto now = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                             kSystemWallClock.Now().time_since_epoch())
                                             .count());
  const uint64_t day = 24 * 3600 * 1000;
  for (const uint64_t incarnation : {~uint64_t{0}, now + 2 * day}) {
    const Status refused = fixture.Register(Resident(incarnation, Layout())).status();
    CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(Message(refused)),
               Catch::Contains(fmt::to_string(incarnation)) &&
                   Catch::Contains("ahead of this host's clock: expected at most"));
  }
  CHECK_FALSE(fixture.ledger_.state().stream().has_value());
  CHECK(fixture.Register(Resident(now + day / 2, Layout())).ok());
  CHECK(fixture.Register(Resident(3, Layout())).ok());
}

TEST_CASE("a stream is forgotten when its trainer has gone, and a lower one follows",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  const StreamId recorded{.incarnation = 7, .id_hi = 1, .id_lo = 7};
  const auto forget = [&](const StreamId& stream) {
    return fixture.Run([&](TrainerSession& session) { return session.ForgetStream(stream); });
  };
  CHECK_THAT(std::string(Message(forget(recorded))), Catch::Contains("none to forget"));
  {
    HandleClient client;
    const uint64_t session = fixture.Attach(Resident(7, Layout()), region.fd, client);
    REQUIRE(fixture.Publish(session, 3).ok());
    CHECK_THAT(std::string(Message(forget(recorded))), Catch::Contains("stop it first"));
    CHECK_THAT(std::string(Message(forget({}))), Catch::Contains(ToString(recorded)));
  }
  fixture.gone_.get_future().wait();
  const Status refused = fixture.Register(Resident(6, Layout())).status();
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("dwsctl forget-stream"));
  REQUIRE(forget(recorded).ok());
  CHECK_FALSE(fixture.ledger_.state().stream().has_value());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(6, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK_FALSE(fixture.state_->log->Newest()->base.has_value());
}

TEST_CASE("a stream keeps its layout", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  fixture.Attach(Resident(1, Layout()), region.fd, client);
  const RankLayout other =
      MakeLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {1000, 99}}}});
  const auto refused = fixture.Register(Resident(1, other));
  CHECK(refused.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(Message(refused.status())).find("higher incarnation") != std::string::npos);
}

TEST_CASE("registrations for another job or rank are refused by name", "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest other_job = Resident(1, Layout());
  other_job.set_job_id("other");
  CHECK(std::string(Message(fixture.Register(other_job).status())).find("'other'") !=
        std::string::npos);
  v1::RegisterRequest other_rank = Resident(1, Layout());
  other_rank.set_world_size(4);
  other_rank.set_trainer_rank(3);
  CHECK(fixture.Register(other_rank).status().code() == absl::StatusCode::kInvalidArgument);
  v1::RegisterRequest no_stream = Resident(1, Layout());
  no_stream.clear_stream();
  CHECK(fixture.Register(no_stream).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a region of the wrong size is answered on the handle socket", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes() + 4096);
  const auto reply = fixture.Register(Resident(1, Layout()));
  REQUIRE(reply.ok());
  HandleClient client;
  const std::string answer = client.Send(reply->handle_socket(), reply->token(), region.fd.get());
  CHECK(answer.substr(0, 7) == "error: ");
  CHECK_FALSE(fixture.Publish(reply->session(), 1).ok());
}

TEST_CASE("a trainer that dies in the middle of a version leaves no trace of it",
          "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_ring()->set_bucket_bytes(uint64_t{1} << 20);
  request.mutable_ring()->set_bucket_count(1);
  Region ring(uint64_t{1} << 20);
  HandleClient client;
  const uint64_t session = fixture.Attach(request, ring.fd, client);
  const auto put = [&](uint64_t version) {
    v1::BeginRequest begin;
    begin.set_session(session);
    begin.set_version(version);
    REQUIRE(fixture.Run([&](TrainerSession& s) { return s.Begin(begin); }).ok());
    v1::PutRequest message;
    message.set_session(session);
    message.set_version(version);
    for (uint32_t slice = 0; slice < 2; ++slice) {
      v1::PutPiece* piece = message.add_pieces();
      piece->set_rank_slice(slice);
      piece->set_block_count(slice == 0 ? 2 : 1);
      piece->set_offset_bytes(slice == 0 ? 0 : 200'000);
    }
    REQUIRE(
        fixture.Run([&](TrainerSession& s) { return s.Put(message, [] { return true; }); }).ok());
  };
  put(1);
  REQUIRE(fixture.Publish(session, 1).ok());
  const Weights before = fixture.Snapshot();
  for (size_t i = 0; i < 200'308; i += 3) ring.Set(i, static_cast<int>(i));
  put(2);
  CHECK(fixture.Snapshot() != before);
  client.HangUp();
  REQUIRE(fixture.gone_.get_future().wait_for(kTimeout) == std::future_status::ready);
  CHECK(fixture.Snapshot() == before);
  CHECK_FALSE(fixture.session_->trainer_present());
  CHECK(fixture.state_->snapshot->version() == WeightVersion(1));
}

TEST_CASE("a put of an attempt before is refused: its bucket holds something else by now",
          "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_ring()->set_bucket_bytes(uint64_t{1} << 20);
  request.mutable_ring()->set_bucket_count(1);
  Region ring(uint64_t{1} << 20);
  HandleClient client;
  const uint64_t session = fixture.Attach(request, ring.fd, client);
  const auto begin = [&](uint64_t attempt) {
    v1::BeginRequest message;
    message.set_session(session);
    message.set_version(1);
    message.set_attempt(attempt);
    return fixture.Run([&](TrainerSession& s) { return s.Begin(message); });
  };
  v1::AbortRequest abort;
  abort.set_session(session);
  abort.set_version(1);
  abort.set_attempt(1);
  REQUIRE(begin(1).ok());
  REQUIRE(fixture.Run([&](TrainerSession& s) { return s.Abort(abort); }).ok());
  CHECK(begin(1).code() == absl::StatusCode::kCancelled);
  REQUIRE(begin(2).ok());
  v1::PutRequest put;
  put.set_session(session);
  put.set_version(1);
  put.set_attempt(1);
  v1::PutPiece* const piece = put.add_pieces();
  piece->set_block_count(2);
  const auto code = [&] {
    return fixture.Run([&](TrainerSession& s) { return s.Put(put, [] { return true; }); }).code();
  };
  CHECK(code() == absl::StatusCode::kCancelled);
  put.set_attempt(2);
  CHECK(code() == absl::StatusCode::kOk);
}

TEST_CASE("buckets that would begin inside of an element are refused", "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_ring()->set_bucket_bytes((uint64_t{1} << 20) + 4);
  request.mutable_ring()->set_bucket_count(2);
  const auto refused = fixture.Register(request);
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(Message(refused.status())).find("multiple of 8") != std::string::npos);
}

}  // namespace
}  // namespace dws
