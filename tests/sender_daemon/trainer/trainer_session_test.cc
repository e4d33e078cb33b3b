// The outcome of versions of a registered trainer.
#include "sender_daemon/trainer/trainer_session.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <future>
#include <random>

#include "tests/sender_daemon/trainer/trainer_session_fixture.h"

namespace dws {
namespace {

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

TEST_CASE(
    "it is said when a delta is worth a fetch before it is published, and when it is given up",
    "[trainer_session]") {
  const RankLayout layout =
      MakeLayout({{.tensor = {.name = "a", .dtype = DType::kF32, .shape = {200'000}}}});
  std::mt19937_64 random(Catch::rngSeed());
  Fixture fixture;
  std::vector<bool> fetchable;  // whenever it was said
  fixture.on_replacing_ = [&] {
    const std::shared_ptr<OpenDelta> open = fixture.state_->snapshot->in_flight().open_delta();
    fetchable.push_back(open != nullptr && open->fetchable());
  };
  Region region(layout.size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, layout), region.fd, client);
  const auto change = [&] {
    for (std::byte& byte : region.region.mutable_bytes()) byte = static_cast<std::byte>(random());
  };
  REQUIRE(fixture.Publish(session, 1).ok());
  fetchable.clear();  // a full version
  change();
  REQUIRE(fixture.Publish(session, 2).ok());
  CHECK(fetchable == std::vector<bool>{true});
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  const std::shared_ptr<OpenDelta> second = fixture.state_->snapshot->in_flight().open_delta();
  CHECK(second->version() == WeightVersion(2));
  CHECK(second->base() == WeightVersion(1));
  CHECK(second->stage() == OpenDelta::Stage::kPublished);
  change();
  fixture.wanted_ = 1;  // while it reads
  CHECK(absl::IsCancelled(fixture.Publish(session, 3).status()));
  CHECK(fetchable == std::vector<bool>{true, true, false});
  CHECK(fixture.state_->snapshot->in_flight().open_delta()->stage() == OpenDelta::Stage::kGivenUp);
  CHECK(second->stage() == OpenDelta::Stage::kPublished);
}

TEST_CASE("sessions of two processes have different numbers", "[trainer_session]") {
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

TEST_CASE("a version that does not increase is refused and the newest is named",
          "[trainer_session]") {
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

TEST_CASE("after a restart the last version is published once more, with the same weights only",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 5).ok());
  region.Set(10, 1);
  REQUIRE(fixture.Publish(session, 6).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  const Weights weights = fixture.Snapshot();
  // Also if the sender starts twice before the trainer is back.
  for (int restart = 0; restart < 2; ++restart) {
    fixture.Restart();
    session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  }
  CHECK(absl::IsFailedPrecondition(fixture.Publish(session, 5).status()));
  SECTION("the same") {
    REQUIRE(fixture.Publish(session, 6).ok());
    CHECK(fixture.Snapshot() == weights);
    CHECK(absl::IsFailedPrecondition(fixture.Publish(session, 6).status()));
  }
  SECTION("others") {
    region.Set(10, 2);
    const auto refused = fixture.Publish(session, 6);
    CHECK(absl::IsFailedPrecondition(refused.status()));
    CHECK_THAT(std::string(Message(refused.status())),
               Catch::Contains("version 6 is recorded with other weights"));
    CHECK(absl::IsFailedPrecondition(fixture.Publish(session, 7).status()));
    session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  }
  REQUIRE(fixture.Publish(session, 7).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
}

TEST_CASE("a publish that the trainer cancels leaves no version", "[trainer_session]") {
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

TEST_CASE("a publish whose trainer closes its connection leaves no version", "[trainer_session]") {
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
  bool shut = false;
  // For gRPC the call is still wanted: this process was stopped for a while.
  const auto published = fixture.Run([&](TrainerSession& s) {
    return s.Publish(request, [&] {
      if (++asked == shuts_at) shut = client.Shut();
      return true;
    });
  });
  CHECK(shut);
  CHECK(published.status().code() == absl::StatusCode::kCancelled);
  CHECK(fixture.Snapshot() == before);
  REQUIRE(fixture.gone_.get_future().wait_for(kTimeout) == std::future_status::ready);
}

TEST_CASE("an aborted attempt is refused when it arrives late", "[trainer_session]") {
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
        absl::StatusCode::kFailedPrecondition);  // no attempt is open
  CHECK(publish(2) == absl::StatusCode::kCancelled);
  CHECK(publish(3) == absl::StatusCode::kCancelled);
  CHECK(publish(4) == absl::StatusCode::kOk);
}

TEST_CASE("a registration returns the newest version whether or not it is recorded",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 5).ok());
  CHECK(fixture.Register(Resident(1, Layout()))->last_version() == 5);
  CHECK(fixture.Register(Resident(2, Layout()))->last_version() == 0);
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

TEST_CASE("a late put of an earlier attempt is refused because its bucket has other content",
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
  CHECK(begin(1).status().code() == absl::StatusCode::kCancelled);
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

TEST_CASE("buckets that would begin inside an element are refused", "[trainer_session]") {
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
