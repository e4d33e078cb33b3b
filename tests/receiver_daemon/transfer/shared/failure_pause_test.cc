// How long a place that fails is left alone.
#include "receiver_daemon/transfer/shared/failure_pause.h"

#include <catch2/catch.hpp>
#include <string>

namespace dws {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

using Code = absl::StatusCode;
const Status kFailed = UnavailableError("status 503");

TEST_CASE("a place that fails is left alone for ten times as long as that took", "[shared]") {
  const TimePoint now = TimePoint() + minutes(5);
  FailurePause pause;
  CHECK(pause.MayAsk(now).ok());
  const Code code = GENERATE(Code::kUnavailable, Code::kDeadlineExceeded, Code::kPermissionDenied);
  pause.Note(MakeStatus(code, "status 503"), seconds(3), now);
  CHECK_FALSE(pause.MayAsk(now + seconds(29)).ok());
  CHECK(pause.MayAsk(now + seconds(30)).ok());
}

TEST_CASE("a pause has a maximum and says so", "[shared]") {
  const TimePoint now = TimePoint() + minutes(5);
  FailurePause pause;
  // A transfer that ended after half an hour.
  pause.Note(kFailed, minutes(30), now);
  const Status left = pause.MayAsk(now + seconds(59));
  CHECK(absl::IsUnavailable(left));
  CHECK(Message(left) == "left alone for up to 60 s since it failed: status 503");
  CHECK(Message(pause.MayAsk(now + seconds(1))) == Message(left));
  CHECK(pause.MayAsk(now + kFailurePauseMax).ok());
}

TEST_CASE("a place that succeeds or lacks a version is asked again at once", "[shared]") {
  const TimePoint now = TimePoint() + minutes(5);
  FailurePause pause;
  pause.Note(kFailed, seconds(3), now);
  const Code code = GENERATE(Code::kOk, Code::kAborted, Code::kDataLoss, Code::kNotFound);
  pause.Note(MakeStatus(code, ""), seconds(3), now + seconds(1));
  CHECK(pause.MayAsk(now + seconds(1)).ok());
}

}  // namespace
}  // namespace dws
