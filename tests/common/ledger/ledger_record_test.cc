#include "common/ledger/ledger_record.h"

#include <catch2/catch.hpp>
#include <string>

namespace dws {
namespace {

constexpr StreamId kStream = {.incarnation = 7, .id_hi = 0x11, .id_lo = 0x22};

std::string Words(const RawRecord& raw) {
  std::string text = fmt::format("{}:", raw.type);
  for (size_t i = 0; i < raw.payload.size(); i += 8) {
    text += fmt::format(" {:x}", LoadLe<uint64_t>(raw.payload.data() + i));
  }
  return text;
}

TEST_CASE("records have the bytes that LEDGER.md describes", "[ledger]") {
  const SenderRecord opened =
      StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(3), .last_version = WeightVersion(9)};
  const SenderRecord published = VersionPublished{.stream = kStream,
                                                  .version = WeightVersion(10),
                                                  .base = std::nullopt,
                                                  .state_token = {.lane0 = 0xa, .lane1 = 0xb}};
  const ReceiverRecord accepted = StreamAccepted{.stream = kStream};
  const ReceiverRecord intent = CommitIntent{.stream = kStream,
                                             .base = WeightVersion(4),
                                             .target = WeightVersion(5),
                                             .generation = Generation(6)};
  const ReceiverRecord committed = VersionCommitted{.stream = kStream, .version = WeightVersion(5)};
  const ReceiverRecord abandoned = CommitAbandoned{.stream = kStream, .target = WeightVersion(5)};
  const ReceiverRecord decided = GroupDecided{.stream = kStream, .version = WeightVersion(5)};
  const ReceiverRecord settled = GroupSettled{.stream = kStream, .version = WeightVersion(5)};
  const SenderRecord unopened = StreamForgotten{.stream = kStream};
  const SenderRecord lost = NumbersLost{.stream = kStream};
  const ReceiverRecord unaccepted = StreamForgotten{.stream = kStream};
  CHECK(Words(EncodeRecord(opened)) == "1: 7 11 22 3 9");
  CHECK(Words(EncodeRecord(published)) == "2: 7 11 22 a 0 a b");
  CHECK(Words(EncodeRecord(accepted)) == "16: 7 11 22");
  CHECK(Words(EncodeRecord(intent)) == "17: 7 11 22 4 5 6");
  CHECK(Words(EncodeRecord(committed)) == "18: 7 11 22 5");
  CHECK(Words(EncodeRecord(abandoned)) == "19: 7 11 22 5");
  CHECK(Words(EncodeRecord(decided)) == "20: 7 11 22 5");
  CHECK(Words(EncodeRecord(settled)) == "21: 7 11 22 5");
  CHECK(Words(EncodeRecord(unopened)) == "3: 7 11 22");
  CHECK(Words(EncodeRecord(lost)) == "4: 7 11 22");
  CHECK(Words(EncodeRecord(unaccepted)) == "22: 7 11 22");

  for (const SenderRecord& record : {opened, published, unopened, lost}) {
    const RawRecord raw = EncodeRecord(record);
    CHECK(DecodeSenderRecord(raw.type, raw.payload).value() == record);
    CHECK(absl::IsFailedPrecondition(DecodeReceiverRecord(raw.type, raw.payload).status()));
  }
  for (const ReceiverRecord& record :
       {accepted, intent, committed, abandoned, decided, settled, unaccepted}) {
    const RawRecord raw = EncodeRecord(record);
    CHECK(DecodeReceiverRecord(raw.type, raw.payload).value() == record);
    CHECK(absl::IsFailedPrecondition(DecodeSenderRecord(raw.type, raw.payload).status()));
  }
}

TEST_CASE("a payload of a wrong size or with version 0 is damage", "[ledger]") {
  for (const uint32_t type : {1u, 2u, 3u, 4u}) {
    const std::vector<std::byte> payload(8);
    CHECK(absl::IsDataLoss(DecodeSenderRecord(type, payload).status()));
  }
  for (const uint32_t type : {16u, 17u, 18u, 19u, 20u, 21u, 22u}) {
    const std::vector<std::byte> payload(23);
    CHECK(absl::IsDataLoss(DecodeReceiverRecord(type, payload).status()));
  }
  CHECK(absl::IsDataLoss(DecodeSenderRecord(2, std::vector<std::byte>(56)).status()));
  CHECK(absl::IsDataLoss(DecodeReceiverRecord(17, std::vector<std::byte>(48)).status()));
  CHECK(absl::IsDataLoss(DecodeReceiverRecord(18, std::vector<std::byte>(32)).status()));
}

TEST_CASE("a record type of a newer version is refused and not skipped", "[ledger]") {
  const Status status = DecodeReceiverRecord(99, {}).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(Message(status)), Catch::Contains("99") && Catch::Contains("newer"));
}

}  // namespace
}  // namespace dws
