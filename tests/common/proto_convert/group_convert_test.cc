#include "common/proto_convert/group_convert.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/model/limits.h"

namespace dws {
namespace {

constexpr VersionAt kAt{.stream = {.incarnation = 2, .id_hi = 3, .id_lo = 4},
                        .version = WeightVersion(7)};
constexpr GroupNonce kRound(11);
constexpr Generation kGeneration(13);
const EngineShare kShare{.held = {true, false, true, false, false, false, false, false, true},
                         .excluded = {false, true, false, false, false, false, false, true, false}};

template <typename Message>
std::string Refusal(const Message& message) {
  const auto parsed = FromProto(message);
  REQUIRE_FALSE(parsed.ok());
  CHECK(absl::IsInvalidArgument(parsed.status()));
  return std::string(dws::Message(parsed.status()));
}

TEST_CASE("a member's messages convert to protobuf and back", "[group]") {
  const std::vector<GroupUp> messages = {
      GroupReport{.seen = GroupNonce(5),
                  .held = kRound,
                  .generation = kGeneration,
                  .live = kAt,
                  .released = true},
      GroupReport{},
      GroupStaged{
          .round = kRound, .target = kAt, .base = WeightVersion(6), .generation = kGeneration},
      GroupStaged{.round = kRound, .target = kAt, .base = {}, .generation = kGeneration},
      GroupUnable{.round = kRound, .reason = "no \xc3\xa4nderung"},
      GroupCommitted{.round = kRound, .version = kAt, .generation = kGeneration},
      GroupShare{.generation = kGeneration, .share = {}},
      GroupShare{.generation = kGeneration, .share = kShare},
  };
  for (const GroupUp& message : messages) {
    INFO(ToProto(message).ShortDebugString());
    const auto parsed = FromProto(ToProto(message));
    REQUIRE(parsed.ok());
    REQUIRE(parsed->has_value());
    CHECK((*parsed)->index() == message.index());
    CHECK(ToProto(**parsed).SerializeAsString() == ToProto(message).SerializeAsString());
  }
}

TEST_CASE("a leader's messages convert to protobuf and back", "[group]") {
  const std::vector<decltype(GroupDown::body)> bodies = {
      GroupPrepare{.target = kAt}, GroupCommit{.round = kRound}, GroupAbort{.round = kRound},
      GroupResume{.version = kAt, .generation = kGeneration}, GroupEnd{.reason = "evicted"}};
  for (const auto& body : bodies) {
    const GroupDown message{.nonce = GroupNonce(3), .body = body};
    INFO(ToProto(message).ShortDebugString());
    const auto parsed = FromProto(ToProto(message));
    REQUIRE(parsed.ok());
    REQUIRE(parsed->has_value());
    CHECK((*parsed)->nonce == GroupNonce(3));
    CHECK((*parsed)->body.index() == body.index());
    CHECK(ToProto(**parsed).SerializeAsString() == ToProto(message).SerializeAsString());
  }
}

TEST_CASE("messages of the connection and of newer versions convert to nothing", "[group]") {
  v1::GroupUp up;
  CHECK_FALSE(FromProto(up).value().has_value());
  up.mutable_hello();
  CHECK_FALSE(FromProto(up).value().has_value());
  v1::GroupDown down;
  CHECK_FALSE(FromProto(down).value().has_value());
  down.mutable_keepalive();
  CHECK_FALSE(FromProto(down).value().has_value());
  down.mutable_welcome();
  CHECK_FALSE(FromProto(down).value().has_value());
}

TEST_CASE("a member's message with missing or excess fields is refused", "[group]") {
  using Change = std::function<void(v1::GroupUp&)>;
  const auto staged = [](const Change& change) {
    v1::GroupUp message =
        ToProto(GroupUp(GroupStaged{.round = kRound, .target = kAt, .generation = kGeneration}));
    change(message);
    return Refusal(message);
  };
  CHECK_THAT(staged([](auto& m) { m.mutable_staged()->clear_round(); }),
             Catch::Contains("the round of a group's STAGED is 0"));
  CHECK_THAT(staged([](auto& m) { m.mutable_staged()->clear_generation(); }),
             Catch::Contains("generation of a group's STAGED is 0"));
  CHECK_THAT(staged([](auto& m) { m.mutable_staged()->mutable_target()->clear_stream(); }),
             Catch::Contains("a group's STAGED: stream id") && Catch::Contains("not set"));
  CHECK_THAT(staged([](auto& m) { m.mutable_staged()->mutable_target()->clear_version(); }),
             Catch::Contains("a group's STAGED names version 0"));

  v1::GroupUp report = ToProto(GroupUp(GroupReport{.generation = kGeneration, .live = kAt}));
  report.mutable_report()->clear_generation();
  CHECK_THAT(Refusal(report), Catch::Contains("no engine rank is attached"));
  report.mutable_report()->clear_live();
  report.mutable_report()->set_released(true);
  CHECK_THAT(Refusal(report), Catch::Contains("may run, but no engine rank is attached"));

  v1::GroupUp unable = ToProto(GroupUp(GroupUnable{.round = kRound, .reason = ""}));
  unable.mutable_unable()->set_reason(std::string(limits::kErrorBytesMax + 1, 'x'));
  CHECK_THAT(Refusal(unable), Catch::Contains("4097 bytes, at most 4096"));

  v1::GroupUp share = ToProto(GroupUp(GroupShare{.generation = kGeneration, .share = kShare}));
  CHECK(share.share().held() == "\x05\x01");
  CHECK(std::get<GroupShare>(**FromProto(share)).share == kShare);
  share.mutable_share()->mutable_excluded()->pop_back();
  CHECK_THAT(Refusal(share), Catch::Contains("excludes has 1 bytes, expected 2 for 9 slices"));
  share.mutable_share()->mutable_held()->push_back('x');
  CHECK_THAT(Refusal(share), Catch::Contains("holds has 3 bytes, expected 2 for 9 slices"));
  share.mutable_share()->set_slice_count(limits::kGroupSlicesMax + 1);
  CHECK_THAT(Refusal(share), Catch::Contains("8000001 slices, at most 8000000"));
  share.mutable_share()->clear_generation();
  CHECK_THAT(Refusal(share), Catch::Contains("generation of a group's share is 0"));

  v1::GroupUp committed;
  committed.mutable_committed()->set_round(1);
  CHECK_THAT(Refusal(committed), Catch::Contains("a group's COMMITTED: stream id"));
}

TEST_CASE("a leader's message with missing fields is refused", "[group]") {
  v1::GroupDown message = ToProto(GroupDown{.nonce = GroupNonce(1), .body = GroupCommit{kRound}});
  message.clear_nonce();
  CHECK_THAT(Refusal(message), Catch::Contains("the nonce of a group's message is 0"));
  message.set_nonce(1);
  message.mutable_commit()->clear_round();
  CHECK_THAT(Refusal(message), Catch::Contains("the round of a group's COMMIT is 0"));
  message.mutable_abort();
  CHECK_THAT(Refusal(message), Catch::Contains("the round of a group's ABORT is 0"));
  message.mutable_prepare();
  CHECK_THAT(Refusal(message), Catch::Contains("a group's PREPARE"));
  message.mutable_resume();
  CHECK_THAT(Refusal(message), Catch::Contains("a group's RESUME"));
  message = ToProto(GroupDown{.nonce = GroupNonce(1),
                              .body = GroupResume{.version = kAt, .generation = kGeneration}});
  message.mutable_resume()->clear_generation();
  CHECK_THAT(Refusal(message), Catch::Contains("the generation of a group's RESUME is 0"));
}

TEST_CASE("a reason that is too long is cut before it is sent", "[group]") {
  const std::string reason = std::string(limits::kErrorBytesMax - 1, 'x') + "\xc3\xa4";
  const v1::GroupUp message = ToProto(GroupUp(GroupUnable{.round = kRound, .reason = reason}));
  CHECK(message.unable().reason() == std::string(limits::kErrorBytesMax - 1, 'x'));
  CHECK(FromProto(message).ok());
}

}  // namespace
}  // namespace dws
