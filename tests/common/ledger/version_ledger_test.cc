#include "common/ledger/version_ledger.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/ledger/file_ledger.h"
#include "common/ledger/file_version_ledger.h"
#include "common/model/limits.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/memory_version_ledger.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

constexpr StreamId kStream = {.incarnation = 4, .id_hi = 1, .id_lo = 2};

ReceiverRecord Intent(uint64_t target) {
  return CommitIntent{.stream = kStream,
                      .base = std::nullopt,
                      .target = WeightVersion(target),
                      .generation = Generation(3)};
}
ReceiverRecord Commit(uint64_t version) {
  return VersionCommitted{.stream = kStream, .version = WeightVersion(version)};
}
SenderRecord Publish(uint64_t version) {
  return VersionPublished{.stream = kStream,
                          .version = WeightVersion(version),
                          .base = std::nullopt,
                          .state_token = {.lane0 = version, .lane1 = 0}};
}

// The contract of every ledger. `fail_next` makes the next write fail.
void CheckConformance(ReceiverLedger& ledger, const std::function<void()>& fail_next) {
  CHECK_FALSE(ledger.state().stream().has_value());
  CHECK(absl::IsFailedPrecondition(ledger.Append(Intent(1))));
  REQUIRE(ledger.Append(StreamAccepted{.stream = kStream}).ok());
  REQUIRE(ledger.Append(Intent(1)).ok());
  CHECK(ledger.state().open_intent().has_value());

  fail_next();
  CHECK(absl::IsResourceExhausted(ledger.Append(Commit(1))));
  CHECK(ledger.state().open_intent().has_value());
  CHECK_FALSE(ledger.state().committed().has_value());

  REQUIRE(ledger.Append(Commit(1)).ok());
  CHECK(ledger.state().committed()->version == WeightVersion(1));
  CHECK_FALSE(ledger.state().open_intent().has_value());
}

TEST_CASE("the file ledger keeps the ledger's contract and its state over a restart", "[ledger]") {
  FaultFileSystem fs;
  auto ledger = OpenReceiverLedger(fs, "/state");
  REQUIRE(ledger.ok());
  CheckConformance(**ledger, [&fs] { fs.FailOperation(1, ResourceExhaustedError("disk full")); });
  const ReceiverLedgerState before = (*ledger)->state();
  ledger->reset();
  fs.LosePower();
  const auto again = OpenReceiverLedger(fs, "/state");
  REQUIRE(again.ok());
  CHECK((*again)->state() == before);
}

TEST_CASE("the memory ledger keeps the ledger's contract", "[ledger]") {
  MemoryReceiverLedger ledger;
  CheckConformance(ledger, [&ledger] { ledger.FailNext(ResourceExhaustedError("disk full")); });
  CHECK(ledger.records().size() == 3);
}

TEST_CASE("a power cut during an append leaves the state before or after it", "[ledger]") {
  // The last record has 32 + 32 bytes; any part of it may have reached the disk.
  for (uint64_t kept = 0; kept <= 64; ++kept) {
    FaultFileSystem fs;
    auto ledger = OpenReceiverLedger(fs, "/state");
    REQUIRE(ledger.ok());
    REQUIRE((*ledger)->Append(StreamAccepted{.stream = kStream}).ok());
    REQUIRE((*ledger)->Append(Intent(1)).ok());
    fs.FailOperation(2, DataLossError("the power goes before the sync"));
    REQUIRE_FALSE((*ledger)->Append(Commit(1)).ok());
    ledger->reset();
    fs.LosePower(kept);
    const auto again = OpenReceiverLedger(fs, "/state");
    REQUIRE(again.ok());
    const bool committed = (*again)->state().committed().has_value();
    REQUIRE(committed == (kept == 64));
    REQUIRE((*again)->state().open_intent().has_value() != committed);
  }
}

TEST_CASE("a ledger compacts itself and stays small after many appends", "[ledger]") {
  FaultFileSystem fs;  // a real disk would sync 20,000 times
  auto ledger = OpenSenderLedger(fs, "/state");
  REQUIRE(ledger.ok());
  REQUIRE((*ledger)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(1)}).ok());
  constexpr uint64_t kVersions = 20'000;
  for (uint64_t v = 1; v <= kVersions; ++v) {
    REQUIRE((*ledger)->Append(Publish(v)).ok());
    if (v % 100 != 0) continue;
    REQUIRE(fs.Content("/state/sender.ledger").size() <= limits::kLedgerCompactBytes + 1000);
  }
  const SenderLedgerState before = (*ledger)->state();
  CHECK(before.last_version() == WeightVersion(kVersions));
  ledger->reset();
  const auto again = OpenSenderLedger(fs, "/state");
  REQUIRE(again.ok());
  CHECK((*again)->state() == before);
}

TEST_CASE("a sender and a receiver cannot take each other's ledger", "[ledger]") {
  TempFolder folder;
  PosixFileSystem fs;
  REQUIRE(OpenSenderLedger(fs, folder.path()).ok());
  REQUIRE(OpenReceiverLedger(fs, folder.path()).ok());  // in another file
  const auto bytes = fs.ReadFile(folder.File("sender.ledger"), 1000);
  REQUIRE(bytes.ok());
  REQUIRE(fs.ReplaceFile(folder.File("receiver.ledger"), *bytes).ok());
  CHECK(absl::IsFailedPrecondition(OpenReceiverLedger(fs, folder.path()).status()));
}

TEST_CASE("records in an impossible order are refused with the offset", "[ledger]") {
  TempFolder folder;
  PosixFileSystem fs;
  {
    const auto accept = [](uint32_t, ByteSpan, uint64_t) { return OkStatus(); };
    auto file = FileLedger::Open(fs, folder.File("receiver.ledger"), LedgerKind::kReceiver, accept);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(EncodeRecord(ReceiverRecord(StreamAccepted{.stream = kStream}))).ok());
    REQUIRE((*file)->Append(EncodeRecord(Commit(1))).ok());
  }
  const Status status = OpenReceiverLedger(fs, folder.path()).status();
  CHECK(absl::IsDataLoss(status));
  CHECK_THAT(std::string(Message(status)),
             Catch::Contains("offset 72") && Catch::Contains("intent is none"));
}

// The golden files were written by version 1 of the format and are never written again.
TEST_CASE("ledgers of format version 1 are written and read byte for byte", "[ledger]") {
  PosixFileSystem disk;
  const auto golden = [&disk](const std::string& name) {
    return disk.ReadFile("tests/golden/ledger/" + name, 10'000).value();
  };
  FaultFileSystem fs;
  {
    auto sender = OpenSenderLedger(fs, "/state");
    REQUIRE((*sender)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(1)}).ok());
    REQUIRE((*sender)->Append(Publish(1)).ok());
    REQUIRE((*sender)->Append(Publish(3)).ok());
    REQUIRE((*sender)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(2)}).ok());
    auto receiver = OpenReceiverLedger(fs, "/state");
    REQUIRE((*receiver)->Append(StreamAccepted{.stream = kStream}).ok());
    REQUIRE((*receiver)->Append(Intent(1)).ok());
    REQUIRE((*receiver)->Append(Commit(1)).ok());
    REQUIRE((*receiver)->Append(Intent(3)).ok());
    REQUIRE(
        (*receiver)->Append(CommitAbandoned{.stream = kStream, .target = WeightVersion(3)}).ok());
  }
  CHECK(fs.Content("/state/sender.ledger") == golden("sender_v1.ledger"));
  CHECK(fs.Content("/state/receiver.ledger") == golden("receiver_v1.ledger"));

  FaultFileSystem copy;
  copy.SetContent("/state/sender.ledger", golden("sender_v1.ledger"));
  copy.SetContent("/state/receiver.ledger", golden("receiver_v1.ledger"));
  const auto sender = OpenSenderLedger(copy, "/state");
  REQUIRE(sender.ok());
  CHECK((*sender)->state().rank_epoch() == RankEpoch(2));
  CHECK((*sender)->state().last_version() == WeightVersion(3));
  const auto receiver = OpenReceiverLedger(copy, "/state");
  REQUIRE(receiver.ok());
  CHECK((*receiver)->state().committed()->version == WeightVersion(1));
  CHECK_FALSE((*receiver)->state().open_intent().has_value());
}

TEST_CASE("a sender's records of forgotten and lost streams are written byte for byte",
          "[ledger]") {
  const StreamId next = {.incarnation = 5, .id_hi = 1, .id_lo = 3};
  const std::vector<std::byte> golden =
      PosixFileSystem().ReadFile("tests/golden/ledger/sender_marks_v1.ledger", 10'000).value();
  FaultFileSystem fs;
  {
    auto sender = OpenSenderLedger(fs, "/state");
    REQUIRE((*sender)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(1)}).ok());
    REQUIRE((*sender)->Append(StreamForgotten{.stream = kStream}).ok());
    REQUIRE((*sender)->Append(StreamOpened{.stream = next, .rank_epoch = RankEpoch(2)}).ok());
    REQUIRE((*sender)->Append(NumbersLost{.stream = next}).ok());
  }
  CHECK(fs.Content("/state/sender.ledger") == golden);
  FaultFileSystem copy;
  copy.SetContent("/state/sender.ledger", golden);
  const auto sender = OpenSenderLedger(copy, "/state");
  REQUIRE(sender.ok());
  CHECK_THAT(std::string(Message((*sender)->state().CheckOpen(next))),
             Catch::Contains("ledger was lost"));
  CHECK((*sender)->state().forgotten().front().stream == kStream);
}

}  // namespace
}  // namespace dws
