#include "common/ledger/fence.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/fakes/fault_file_system.h"

namespace dws {
namespace {

constexpr StreamId kStream = {.incarnation = 4, .id_hi = 1, .id_lo = 2};
const Fence kSender = {.stream = kStream, .rank_epoch = RankEpoch(9)};
const Fence kReceiver = {.stream = kStream, .rank_epoch = RankEpoch(0)};

TEST_CASE("fences are ordered by incarnation and inside one stream by rank epoch", "[ledger]") {
  Fence later = kSender;
  later.rank_epoch = RankEpoch(10);
  CHECK(kSender.BelowOf(later));
  CHECK_FALSE(later.BelowOf(kSender));
  CHECK_FALSE(kSender.BelowOf(kSender));
  const Fence next = {.stream = {.incarnation = 5, .id_hi = 1, .id_lo = 2},
                      .rank_epoch = RankEpoch(1)};
  CHECK(kSender.BelowOf(next));
  CHECK_FALSE(next.BelowOf(later));
  const Fence twin = {.stream = {.incarnation = 4, .id_hi = 7, .id_lo = 2},
                      .rank_epoch = RankEpoch(99)};
  CHECK_FALSE(kSender.BelowOf(twin));
}

// The golden files were written by version 1 of the format and are never written again.
TEST_CASE("fences of format version 1 are written and read byte for byte", "[ledger]") {
  PosixFileSystem disk;
  const auto golden = [&disk](const std::string& name) {
    return disk.ReadFile("tests/golden/ledger/" + name, 1000).value();
  };
  CHECK(EncodeFence(LedgerKind::kSender, kSender) == golden("sender_v1.fence"));
  CHECK(EncodeFence(LedgerKind::kReceiver, kReceiver) == golden("receiver_v1.fence"));
  CHECK(EncodeFence(LedgerKind::kReceiver, std::nullopt) == golden("none_v1.fence"));
  CHECK(DecodeFence(LedgerKind::kSender, golden("sender_v1.fence")).value() == kSender);
  CHECK(DecodeFence(LedgerKind::kReceiver, golden("receiver_v1.fence")).value() == kReceiver);
  CHECK_FALSE(DecodeFence(LedgerKind::kReceiver, golden("none_v1.fence")).value().has_value());
}

TEST_CASE("a fence with any byte flipped or cut off or added is damaged", "[ledger]") {
  const std::vector<std::byte> sound = EncodeFence(LedgerKind::kSender, kSender);
  for (size_t at = 0; at < sound.size(); ++at) {
    std::vector<std::byte> file = sound;
    file[at] ^= std::byte{0x10};
    REQUIRE(absl::IsDataLoss(DecodeFence(LedgerKind::kSender, file).status()));
    file.resize(at);
    REQUIRE(absl::IsDataLoss(DecodeFence(LedgerKind::kSender, file).status()));
  }
  std::vector<std::byte> longer = sound;
  longer.push_back(std::byte{0});
  CHECK(absl::IsDataLoss(DecodeFence(LedgerKind::kSender, longer).status()));
  const Status other = DecodeFence(LedgerKind::kReceiver, sound).status();
  CHECK(absl::IsDataLoss(other));
  CHECK_THAT(std::string(Message(other)), Catch::Contains("fence of a receiver"));
}

TEST_CASE("a fence is written only when it changes and survives a power cut", "[ledger]") {
  FaultFileSystem fs;
  FenceFile file(fs, "/state/sender.fence", LedgerKind::kSender);
  CHECK(absl::IsNotFound(file.Read().status()));
  REQUIRE(file.Keep(kSender).ok());
  const int written = fs.operation_count();
  REQUIRE(file.Keep(kSender).ok());
  CHECK(fs.operation_count() == written);
  fs.LosePower();
  CHECK(file.Read().value() == kSender);

  fs.FailOperation(1, ResourceExhaustedError("disk full"));
  CHECK(absl::IsResourceExhausted(file.Keep(std::nullopt)));
  CHECK(file.Read().value() == kSender);
  REQUIRE(file.Keep(std::nullopt).ok());
  CHECK_FALSE(file.Read().value().has_value());

  fs.SetContent("/state/sender.fence", std::vector<std::byte>(1000));
  const Status longer = file.Read().status();
  CHECK(absl::IsDataLoss(longer));
  CHECK_THAT(std::string(Message(longer)), Catch::Contains("/state/sender.fence is damaged"));
}

}  // namespace
}  // namespace dws
