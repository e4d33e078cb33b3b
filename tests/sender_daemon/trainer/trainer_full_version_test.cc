// Full versions of a registered trainer, and what it may do after one was given up.
#include <catch2/catch.hpp>

#include "sender_daemon/trainer/trainer_session.h"
#include "tests/sender_daemon/trainer/trainer_session_fixture.h"

namespace dws {
namespace {

Result<v1::PublishReply> Publish(Fixture& fixture, uint64_t session, uint64_t version, bool full) {
  v1::PublishRequest request;
  request.set_session(session);
  request.set_version(version);
  request.set_full(full);
  return fixture.Run([&](TrainerSession& s) { return s.Publish(request, [] { return true; }); });
}

// A trainer that hands tensors over one by one.
struct RingTrainer {
  explicit RingTrainer(Fixture& owner) : fixture(owner) { Register(); }

  void Register() {
    v1::RegisterRequest request = Resident(1, Layout());
    request.mutable_ring()->set_bucket_bytes(uint64_t{1} << 20);
    request.mutable_ring()->set_bucket_count(1);
    client = std::make_unique<HandleClient>();
    session = fixture.Attach(request, ring.fd, *client);
  }
  Status Begin(uint64_t version, bool full) {
    v1::BeginRequest request;
    request.set_session(session);
    request.set_version(version);
    request.set_full(full);
    return fixture.Run([&](TrainerSession& s) { return s.Begin(request); }).status();
  }
  Status Put(uint64_t version, uint32_t slice) {
    v1::PutRequest request;
    request.set_session(session);
    request.set_version(version);
    v1::PutPiece* const piece = request.add_pieces();
    piece->set_rank_slice(slice);
    piece->set_block_count(slice == 0 ? 2 : 1);
    return fixture.Run([&](TrainerSession& s) { return s.Put(request, [] { return true; }); });
  }
  // Both tensors; each begins like the bucket.
  void PublishAll(uint64_t version, bool full) {
    REQUIRE(Begin(version, full).ok());
    for (const uint32_t slice : {0U, 1U}) REQUIRE(Put(version, slice).ok());
    const auto reply = Publish(fixture, session, version, false);
    REQUIRE(reply.ok());
    CHECK(reply->full() == (full || version == 1));
  }

  Fixture& fixture;
  Region ring{uint64_t{1} << 20};
  std::unique_ptr<HandleClient> client;
  uint64_t session = 0;
};

RetainedVersionPtr Newest(Fixture& fixture) {
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  return fixture.state_->log->Newest();
}

TEST_CASE("a resident region is published in full when the trainer asks for it", "[full_version]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  CHECK(Publish(fixture, session, 1, false)->full());
  region.Set(10, 1);
  region.Set(100'000, 7);
  const auto full = Publish(fixture, session, 2, true);
  REQUIRE(full.ok());
  CHECK(full->full());
  CHECK(full->changed_elements() == 0);  // only copied, not compared
  CHECK(Newest(fixture)->full == FullCause::kAsked);
  CHECK_FALSE(Newest(fixture)->base.has_value());
  region.Set(20, 1);
  const auto delta = Publish(fixture, session, 3, false);
  CHECK_FALSE(delta->full());
  CHECK(delta->changed_elements() == 1);
  CHECK(Newest(fixture)->base == WeightVersion(2));
  CHECK(fixture.ledger_.state().last_version() == WeightVersion(3));
}

TEST_CASE("a ring's full version must have every tensor", "[full_version]") {
  Fixture fixture;
  RingTrainer trainer(fixture);
  trainer.PublishAll(1, false);
  REQUIRE(trainer.Begin(2, true).ok());
  REQUIRE(trainer.Put(2, 0).ok());
  const auto lacks = Publish(fixture, trainer.session, 2, false);
  CHECK(lacks.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(Message(lacks.status())).find("tensor 'b'") != std::string::npos);
  REQUIRE(trainer.Put(2, 1).ok());  // it is still open
  CHECK(Publish(fixture, trainer.session, 2, false)->full());
  CHECK(Newest(fixture)->full == FullCause::kAsked);
}

TEST_CASE("a trainer that dies in a full version leaves no number that is used twice",
          "[full_version]") {
  Fixture fixture;
  RingTrainer trainer(fixture);
  trainer.PublishAll(1, false);
  trainer.ring.Set(0, 1);
  trainer.PublishAll(2, false);
  REQUIRE(trainer.Begin(3, true).ok());
  trainer.ring.Set(0, 2);
  REQUIRE(trainer.Put(3, 0).ok());
  trainer.client->HangUp();
  REQUIRE(fixture.gone_.get_future().wait_for(kTimeout) == std::future_status::ready);
  const RankStatePtr state = fixture.state_;
  CHECK_FALSE(state->snapshot->version().has_value());

  // The next trainer of the stream: the same state, and a first version.
  trainer.Register();
  CHECK(fixture.state_ == state);
  CHECK(fixture.Register(Resident(1, Layout()))->last_version() == 2);
  CHECK(trainer.Begin(2, false).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(trainer.Begin(3, false).ok());
  REQUIRE(trainer.Put(3, 0).ok());
  CHECK(Publish(fixture, trainer.session, 3, false).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  REQUIRE(trainer.Put(3, 1).ok());
  const auto third = Publish(fixture, trainer.session, 3, false);
  REQUIRE(third.ok());
  CHECK(third->full());
  CHECK(third->changed_elements() == 0);  // nothing was left to compare with
  CHECK(Newest(fixture)->full == FullCause::kFirst);
  CHECK(Newest(fixture)->after == DigestsOf(Layout(), fixture.Snapshot()));
  v1::WaitRequest wait;
  wait.set_session(trainer.session);
  wait.set_version(3);
  CHECK(fixture.Run([&](TrainerSession& s) { return s.CheckWait(wait); }).ok());
}

TEST_CASE("a wait for the last version goes on after a full one was given up", "[full_version]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  v1::PublishRequest request;
  request.set_session(session);
  request.set_version(2);
  request.set_full(true);
  int asked = 0;  // given up while it reads
  CHECK(fixture
            .Run([&](TrainerSession& s) { return s.Publish(request, [&] { return asked++ < 1; }); })
            .status()
            .code() == absl::StatusCode::kCancelled);
  CHECK_FALSE(fixture.state_->snapshot->version().has_value());
  v1::WaitRequest wait;
  wait.set_session(session);
  wait.set_version(1);
  CHECK(fixture.Run([&](TrainerSession& s) { return s.CheckWait(wait); }).ok());
  wait.set_version(2);
  CHECK(absl::IsAborted(fixture.Run([&](TrainerSession& s) { return s.CheckWait(wait); })));
  REQUIRE(fixture.Publish(session, 2).ok());
  CHECK(fixture.Run([&](TrainerSession& s) { return s.CheckWait(wait); }).ok());
}

TEST_CASE("engines that need cuts wait for the version after a full one that was given up",
          "[full_version]") {
  Fixture fixture;
  RingTrainer trainer(fixture);
  trainer.PublishAll(1, false);
  REQUIRE(trainer.Begin(2, true).ok());
  REQUIRE(trainer.Put(2, 0).ok());
  trainer.client->HangUp();
  REQUIRE(fixture.gone_.get_future().wait_for(kTimeout) == std::future_status::ready);
  const CutWishes wishes = {{"a", {{.dim = 1, .at = {40, 70}}}}};
  const StreamId stream = fixture.state_->stream;
  const auto refine = [&] {
    return fixture.Run([&](TrainerSession& s) { return s.Refine(stream, wishes); });
  };
  CHECK(absl::IsUnavailable(refine()));
  CHECK(fixture.state_->layout().slice_count() == 2);
}

}  // namespace
}  // namespace dws
