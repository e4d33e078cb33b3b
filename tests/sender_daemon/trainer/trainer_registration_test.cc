// Which trainers a sender registers, and which trainers, streams and memory it refuses.
#include <catch2/catch.hpp>

#include "sender_daemon/trainer/trainer_session.h"
#include "tests/sender_daemon/trainer/trainer_session_fixture.h"

namespace dws {
namespace {

TEST_CASE("a shard that begins inside an element is refused on the handle socket and named",
          "[trainer_session]") {
  Fixture fixture;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_resident()->mutable_shards(1)->set_offset_bytes(200'002);  // an F32 shard
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
  // The same stream continues with its snapshot: the next version is a delta.
  REQUIRE(fixture.Publish(second, 2).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK(fixture.state_->log->Newest()->base == WeightVersion(1));
}

TEST_CASE("a registration that fences the trainer and then fails leaves no trainer",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient first_client;
  fixture.Attach(Resident(1, Layout()), region.fd, first_client);
  CHECK(fixture.Run([](TrainerSession& session) { return session.trainer_present(); }));
  fixture.memory_ledger_->FailNext(ResourceExhaustedError("disk full"));
  HandleClient second_client;
  const auto reply = fixture.Register(Resident(2, Layout()));
  REQUIRE(reply.ok());
  CHECK_THAT(second_client.Send(reply->handle_socket(), reply->token(), region.fd.get()),
             Catch::Contains("disk full"));
  CHECK_FALSE(fixture.Run([](TrainerSession& session) { return session.trainer_present(); }));
  CHECK(fixture.told_gone_.load());
}

TEST_CASE("a trainer's connection ends when the sender has released its memory",
          "[trainer_session]") {
  HandleClient next_client;  // outlives the fixture, which sees only one hang-up
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  fixture.Attach(Resident(1, Layout()), region.fd, client);
  std::promise<void> go_on;
  REQUIRE(fixture.executor_.Post([&] { go_on.get_future().wait(); }));
  client.Shut();
  CHECK_FALSE(client.Ended(std::chrono::milliseconds(200)));  // the session has not seen it yet
  go_on.set_value();
  CHECK(client.Ended(kTimeout));
  const uint64_t next = fixture.Attach(Resident(1, Layout()), region.fd, next_client);
  CHECK(fixture.Publish(next, 1).ok());
}

TEST_CASE("an old trainer that wakes up is refused and a new stream starts from version 1",
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

TEST_CASE("a state begins its stream unless a sender before it has recorded a version",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  const StreamId stream{.incarnation = 1, .id_hi = 1, .id_lo = 1};
  REQUIRE(fixture.ledger_.Append(StreamOpened{.stream = stream, .rank_epoch = RankEpoch(1)}).ok());
  const bool recorded = GENERATE(false, true);
  if (recorded) {
    REQUIRE(fixture.ledger_.Append(VersionPublished{.stream = stream, .version = WeightVersion(5)})
                .ok());
  }
  HandleClient client;
  static_cast<void>(fixture.Attach(Resident(1, Layout()), region.fd, client));
  REQUIRE(fixture.state_->stream == stream);
  CHECK(fixture.state_->begins_stream == !recorded);
  HandleClient next;
  static_cast<void>(fixture.Attach(Resident(2, Layout()), region.fd, next));
  CHECK(fixture.state_->begins_stream);
}

TEST_CASE("an incarnation ahead of the clock is refused and changes nothing", "[trainer_session]") {
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

TEST_CASE("a stream can be forgotten once its trainer is gone and a lower one is then accepted",
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
  const RankEpoch before = fixture.state_->rank_epoch;
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(6, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK_FALSE(fixture.state_->log->Newest()->base.has_value());
  CHECK(fixture.state_->rank_epoch > before);
}

TEST_CASE("a trainer cannot register again in a stream that was forgotten or lost versions",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  const auto stream = [](uint64_t incarnation) {
    return StreamId{.incarnation = incarnation, .id_hi = 1, .id_lo = incarnation};
  };
  {
    HandleClient client;
    const uint64_t session = fixture.Attach(Resident(7, Layout()), region.fd, client);
    REQUIRE(fixture.Publish(session, 3).ok());
  }
  fixture.gone_.get_future().wait();
  REQUIRE(
      fixture.Run([&](TrainerSession& session) { return session.ForgetStream(stream(7)); }).ok());
  const Status forgotten = fixture.Register(Resident(7, Layout())).status();
  CHECK(absl::IsFailedPrecondition(forgotten));
  CHECK_THAT(std::string(Message(forgotten)), Catch::Contains("Start a new stream"));

  REQUIRE(
      fixture.ledger_.Append(StreamOpened{.stream = stream(8), .rank_epoch = RankEpoch(9)}).ok());
  REQUIRE(fixture.ledger_.Append(NumbersLost{.stream = stream(8)}).ok());
  const Status lost = fixture.Register(Resident(8, Layout())).status();
  CHECK(absl::IsFailedPrecondition(lost));
  CHECK_THAT(std::string(Message(lost)), Catch::Contains("ledger was lost"));
  CHECK(fixture.Register(Resident(9, Layout())).ok());
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

}  // namespace
}  // namespace dws
