// A trainer's layout is refined between its calls, and the trainer goes on as before.
#include <catch2/catch.hpp>

#include "common/model/limits.h"
#include "tests/sender_daemon/trainer/trainer_session_fixture.h"

namespace dws {
namespace {

const StreamId kStream{.incarnation = 1, .id_hi = 1, .id_lo = 1};

CutWishes Columns() { return {{"a", {{.dim = 1, .at = {40, 70}}}}}; }

Status Refine(Fixture& fixture, const CutWishes& wishes, const StreamId& stream = kStream) {
  return fixture.Run([&](TrainerSession& session) { return session.Refine(stream, wishes); });
}

RankLayout Finer() { return *Refined(Layout(), Columns()); }

}  // namespace

TEST_CASE("a refined state has the newest version alone, under a higher epoch",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  region.Set(10, 1);
  REQUIRE(fixture.Publish(session, 2).ok());
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  const RankStatePtr before = fixture.state_;
  const Digest token = before->log->Newest()->manifest.state_token;

  REQUIRE(Refine(fixture, Columns()).ok());
  CHECK(fixture.state_->layout() == Finer());
  CHECK(fixture.state_->declared == Layout());
  CHECK(fixture.state_->rank_epoch > before->rank_epoch);
  CHECK(fixture.ledger_.state().rank_epoch() == fixture.state_->rank_epoch);
  CHECK(fixture.ledger_.state().last_version() == WeightVersion(2));
  REQUIRE(fixture.state_->log->All().size() == 1);
  const RetainedVersionPtr newest = fixture.state_->log->Newest();
  CHECK(newest->version == WeightVersion(2));
  CHECK_FALSE(newest->base.has_value());
  CHECK_FALSE(fixture.state_->begins_stream);
  // Receivers report the version with either token until they have mapped their engines again.
  CHECK(newest->Has(token));
  CHECK(newest->Has(StateToken(newest->after)));
  CHECK_FALSE(newest->Has(Digest{.lane0 = 1}));

  // The trainer's next version is read by the finer slices, from the same memory.
  region.Set(10, 2);
  region.Set(2 * 45, 3);  // a[0][45]
  const auto third = fixture.Publish(session, 3);
  REQUIRE(third.ok());
  CHECK(third->changed_elements() == 2);
  REQUIRE(fixture.pipeline_.Drain(kTimeout).ok());
  CHECK(fixture.state_->log->Newest()->base == WeightVersion(2));
  CHECK(fixture.Snapshot()[1][2 * 5] == std::byte{3});  // of columns 40 to 70
}

TEST_CASE("what is asked for twice, or of another stream, changes nothing", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  CHECK(Refine(fixture, Columns()).ok());  // nobody has registered
  static_cast<void>(fixture.Attach(Resident(1, Layout()), region.fd, client));
  REQUIRE(Refine(fixture, Columns()).ok());
  const RankStatePtr state = fixture.state_;
  CHECK(state->layout() == Finer());  // also before the first version
  CHECK(state->begins_stream);
  CHECK(Refine(fixture, Columns()).ok());
  CHECK(Refine(fixture, {{"other", {{.dim = 0, .at = {1}}}}}).ok());
  CHECK(Refine(fixture, {{"b", {{.dim = 0, .at = {5}}}}}, {.incarnation = 2, .id_hi = 1}).ok());
  CHECK(fixture.state_ == state);
}

TEST_CASE("cuts past a limit are refused and the state is kept", "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  const RankStatePtr state = fixture.state_;
  Cuts rows{.dim = 0, .at = {}};
  for (uint64_t at = 1; at < 1000; ++at) rows.at.push_back(at);
  Cuts columns{.dim = 1, .at = {}};
  for (uint64_t at = 1; at < 100; ++at) columns.at.push_back(at);
  const Status refused = Refine(fixture, {{"a", {rows, columns}}});
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(fixture.state_ == state);
  CHECK(fixture.Publish(session, 2).ok());
}

TEST_CASE("a trainer that registers again as before goes on with the finer layout",
          "[trainer_session]") {
  Fixture fixture;
  Region region(Layout().size_bytes());
  HandleClient first;
  const uint64_t session = fixture.Attach(Resident(1, Layout()), region.fd, first);
  REQUIRE(fixture.Publish(session, 1).ok());
  REQUIRE(Refine(fixture, Columns()).ok());
  const RankStatePtr state = fixture.state_;
  HandleClient second;
  const uint64_t again = fixture.Attach(Resident(1, Layout()), region.fd, second);
  CHECK(fixture.state_ == state);
  region.Set(2 * 45, 3);
  REQUIRE(fixture.Publish(again, 2).ok());
  CHECK(fixture.Snapshot()[1][2 * 5] == std::byte{3});
  // Its declared layout may not change, not even to the finer one.
  CHECK(fixture.Register(Resident(1, Finer())).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("cuts that a trainer's memory cannot be read by are refused while it is away, too",
          "[trainer_session]") {
  const RankLayout cube =
      MakeLayout({{.tensor = {.name = "e", .dtype = DType::kBF16, .shape = {3, 8, 6}}}});
  Fixture fixture;
  Region region(cube.size_bytes());
  HandleClient client;
  static_cast<void>(fixture.Attach(Resident(1, cube), region.fd, client));
  REQUIRE(Refine(fixture, {{"e", {{.dim = 1, .at = {4}}}}}).ok());
  client.HangUp();
  fixture.gone_.get_future().wait();
  const Status refused = Refine(fixture, {{"e", {{.dim = 2, .at = {3}}}}});
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(refused).find("'e'") != std::string_view::npos);
  HandleClient again;
  static_cast<void>(fixture.Attach(Resident(1, cube), region.fd, again));
}

TEST_CASE("cuts by which engines could not hold what is of all ranks are refused",
          "[trainer_session]") {
  // The rank's own part, half the rows of all experts, could be read.
  const RankLayout half = MakeLayout({{.tensor = {.name = "e",
                                                  .dtype = DType::kBF16,
                                                  .shape = {3, 8, 6},
                                                  .cuts = {{.dim = 1, .at = {4}}}},
                                       .cells = {{.first = 1, .count = 1}}}});
  Fixture fixture;
  Region region(half.shards()[0].tensor.SizeBytes());
  HandleClient client;
  const uint64_t session = fixture.Attach(Resident(1, half), region.fd, client);
  REQUIRE(fixture.Publish(session, 1).ok());
  const RankStatePtr state = fixture.state_;
  const Status refused = Refine(fixture, {{"e", {{.dim = 2, .at = {3}}}}});
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(refused).find("'e'") != std::string_view::npos);
  CHECK(fixture.state_ == state);
  CHECK(Refine(fixture, {{"e", {{.dim = 0, .at = {2}}}}}).ok());
}

TEST_CASE("an open version is finished in the layout it began with", "[trainer_session]") {
  Fixture fixture;
  Region ring(1 << 20);
  HandleClient client;
  v1::RegisterRequest request = Resident(1, Layout());
  request.mutable_ring()->set_bucket_bytes(1 << 20);
  request.mutable_ring()->set_bucket_count(1);
  const uint64_t session = fixture.Attach(request, ring.fd, client);
  v1::BeginRequest begin;
  begin.set_session(session);
  begin.set_version(1);
  begin.set_attempt(1);
  const auto open = [&] {
    return fixture.Run([&](TrainerSession& live) { return live.Begin(begin); });
  };
  REQUIRE(open().ok());
  REQUIRE(Refine(fixture, Columns()).ok());
  CHECK(fixture.state_->layout() == Layout());
  v1::AbortRequest abort;
  abort.set_session(session);
  abort.set_version(1);
  abort.set_attempt(1);
  REQUIRE(fixture.Run([&](TrainerSession& live) { return live.Abort(abort); }).ok());
  fixture.Run([](TrainerSession&) { return true; });  // after what the call has left to do
  CHECK(fixture.state_->layout() == Finer());

  // Its next version begins when it names pieces by the finer slices.
  begin.set_attempt(2);
  const auto told = open();
  REQUIRE(told.ok());
  CHECK(FromProto(told->layout()).value() == Finer());
  v1::PublishRequest publish;
  publish.set_session(session);
  publish.set_version(1);
  publish.set_attempt(2);
  CHECK(fixture.Run([&](TrainerSession& live) {
    return live.Publish(publish, [] { return true; }).status().code();
  }) == absl::StatusCode::kFailedPrecondition);
  *begin.mutable_layout_signature() = told->layout_signature();
  const auto begun = open();
  REQUIRE(begun.ok());
  CHECK_FALSE(begun->has_layout());
}

}  // namespace dws
