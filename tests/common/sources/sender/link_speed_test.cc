// A link's encoding follows from its measured speed, compared with the speed of the encoders.
#include "common/sources/sender/link_speed.h"

#include <catch2/catch.hpp>
#include <chrono>

namespace dws {
namespace {

constexpr uint64_t kTransfer = uint64_t{64} << 20;

// A link whose transfers ran at this speed.
DeltaProfile ProfileAt(uint64_t bytes_per_second) {
  LinkSpeed speed;
  const std::chrono::duration<double> took(static_cast<double>(kTransfer) /
                                           static_cast<double>(bytes_per_second));
  for (int i = 0; i < 3; ++i) speed.Add(kTransfer, std::chrono::duration_cast<Duration>(took));
  return speed.Choose(ProfileChoice::kAuto);
}

}  // namespace

TEST_CASE("a slower link gets a more expensive encoding", "[link]") {
  CHECK(ProfileAt(1 << 20) == DeltaProfile::kWan);
  CHECK(ProfileAt(limits::kWanBytesPerSecond / 10 * 9) == DeltaProfile::kWan);
  CHECK(ProfileAt(limits::kWanBytesPerSecond / 10 * 11) == DeltaProfile::kFast);
  CHECK(ProfileAt(kDirectBytesPerSecond / 10 * 9) == DeltaProfile::kFast);
  // Dense steps are chosen only for links slower than the dense encoder.
  CHECK(ProfileAt(kDirectBytesPerSecond / 10 * 11) == DeltaProfile::kDirect);
  CHECK(ProfileAt(uint64_t{10} << 30) == DeltaProfile::kDirect);
}

TEST_CASE("a link that was never measured on a long transfer gets the default encoding", "[link]") {
  LinkSpeed speed;
  CHECK(speed.Choose(ProfileChoice::kAuto) == DeltaProfile::kFast);
  speed.Add(limits::kLinkSampleBytesMin - 1, std::chrono::seconds(100));
  speed.Add(kTransfer, Duration::zero());
  CHECK(speed.Choose(ProfileChoice::kAuto) == DeltaProfile::kFast);
}

TEST_CASE("several slow transfers make a link slow and a single one does not", "[link]") {
  LinkSpeed speed;
  for (int i = 0; i < 5; ++i) speed.Add(kTransfer, std::chrono::milliseconds(100));
  CHECK(speed.Choose(ProfileChoice::kAuto) == DeltaProfile::kDirect);
  speed.Add(kTransfer, std::chrono::seconds(10));
  CHECK(speed.Choose(ProfileChoice::kAuto) != DeltaProfile::kWan);
  for (int i = 0; i < 20; ++i) speed.Add(kTransfer, std::chrono::seconds(10));
  CHECK(speed.Choose(ProfileChoice::kAuto) == DeltaProfile::kWan);
}

TEST_CASE("the operator's choice of encoding holds at every speed", "[link]") {
  for (const auto took : {std::chrono::milliseconds(1), std::chrono::milliseconds(100'000)}) {
    LinkSpeed speed;
    speed.Add(kTransfer, took);
    CHECK(speed.Choose(ProfileChoice::kFast) == DeltaProfile::kFast);
    CHECK(speed.Choose(ProfileChoice::kWan) == DeltaProfile::kWan);
    CHECK(speed.Choose(ProfileChoice::kDirect) == DeltaProfile::kDirect);
  }
  for (const ProfileChoice choice :
       {ProfileChoice::kAuto, ProfileChoice::kFast, ProfileChoice::kWan, ProfileChoice::kDirect}) {
    CHECK(ProfileChoiceNamed(ToString(choice)) == choice);
  }
}

}  // namespace dws
