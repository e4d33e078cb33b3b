// Damaged ledgers, with and without --quarantine-damaged-ledger: which are refused, which parts of
// them are kept, and that old trainers stay refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <string>

#include "common/ledger/fence.h"
#include "common/ledger/file_version_ledger.h"
#include "common/model/identity_limits.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

constexpr StreamId kOld = {.incarnation = 3, .id_hi = 1, .id_lo = 1};
constexpr StreamId kStream = {.incarnation = 4, .id_hi = 1, .id_lo = 2};
constexpr StreamId kTwin = {.incarnation = 4, .id_hi = 9, .id_lo = 9};
constexpr StreamId kNew = {.incarnation = 5, .id_hi = 1, .id_lo = 2};
const std::string kPath = "/state/receiver.ledger";
const std::string kFencePath = "/state/receiver.fence";
constexpr LedgerOptions kQuarantine = {.quarantine_damaged = true};
using Bytes = std::vector<std::byte>;

CommitIntent Intent(uint64_t target) {
  return {.stream = kStream,
          .base = std::nullopt,
          .target = WeightVersion(target),
          .generation = Generation(3)};
}

// A ledger of several records; damage in all but the last is not a torn tail.
void Fill(FileSystem& fs) {
  auto ledger = OpenReceiverLedger(fs, "/state");
  REQUIRE(ledger.ok());
  REQUIRE((*ledger)->Append(StreamAccepted{.stream = kStream}).ok());
  for (const uint64_t version : {1, 2}) {
    REQUIRE((*ledger)->Append(Intent(version)).ok());
    REQUIRE((*ledger)
                ->Append(VersionCommitted{.stream = kStream, .version = WeightVersion(version)})
                .ok());
  }
}

// Checks that the stream is known, and that an older one and a second one are refused.
void CheckFenced(ReceiverLedger& ledger) {
  CHECK(ledger.state().stream() == kStream);
  CHECK(absl::IsFailedPrecondition(ledger.Append(StreamAccepted{.stream = kOld})));
  CHECK(absl::IsFailedPrecondition(ledger.Append(StreamAccepted{.stream = kTwin})));
}

struct Damage {
  const char* what;
  std::function<Bytes(Bytes)> make;
};

const Damage kDamages[] = {
    {"magic", [](Bytes file) { return file[3] ^= std::byte{1}, file; }},
    {"version", [](Bytes file) { return file[8] ^= std::byte{0x10}, file; }},
    {"kind", [](Bytes file) { return file[12] ^= std::byte{0x10}, file; }},
    {"length of the first record", [](Bytes file) { return file[16] ^= std::byte{1}, file; }},
    {"payload of the first record", [](Bytes file) { return file[50] ^= std::byte{1}, file; }},
    {"middle", [](Bytes file) { return file[file.size() / 2] ^= std::byte{1}, file; }},
    {"zeros in the middle",
     [](Bytes file) { return std::fill_n(file.begin() + 60, 60, std::byte{0}), file; }},
    {"rubbish behind",
     [](Bytes file) { return file.resize(file.size() + 9000, std::byte{7}), file; }},
    {"only a piece of the head", [](Bytes file) { return file.resize(9), file; }},
    {"empty", [](Bytes) { return Bytes(); }},
};

TEST_CASE("without the flag a damaged ledger is refused and the message names the flag",
          "[ledger]") {
  for (const Damage& damage : kDamages) {
    INFO(damage.what);
    FaultFileSystem fs;
    Fill(fs);
    const Bytes content = damage.make(fs.Content(kPath));
    fs.SetContent(kPath, content);
    const Status status = OpenReceiverLedger(fs, "/state").status();
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(Message(status)), Catch::Contains(kPath) &&
                                                 Catch::Contains("nothing was changed") &&
                                                 Catch::Contains("--quarantine-damaged-ledger"));
    CHECK(fs.Content(kPath) == content);
    CHECK(fs.List("/state")->size() == 2);
  }
}

TEST_CASE("with the flag a damaged ledger is set aside and old trainers stay refused", "[ledger]") {
  for (const Damage& damage : kDamages) {
    INFO(damage.what);
    FaultFileSystem fs;
    Fill(fs);
    const Bytes content = damage.make(fs.Content(kPath));
    fs.SetContent(kPath, content);
    {
      auto ledger = OpenReceiverLedger(fs, "/state", kQuarantine);
      REQUIRE(ledger.ok());
      CheckFenced(**ledger);
      // Nothing else is known; memory is proved by its digests.
      CHECK_FALSE((*ledger)->state().committed().has_value());
      CHECK_FALSE((*ledger)->state().open_intent().has_value());
      REQUIRE((*ledger)->Append(Intent(3)).ok());
    }
    CHECK(fs.Content(kPath + ".damaged-1") == content);
    fs.LosePower();
    auto again = OpenReceiverLedger(fs, "/state");
    REQUIRE(again.ok());
    CheckFenced(**again);
    CHECK((*again)->state().open_intent()->target == WeightVersion(3));
    REQUIRE((*again)->Append(StreamAccepted{.stream = kNew}).ok());
  }
}

TEST_CASE("a flipped byte anywhere in a ledger never lowers the fence", "[ledger]") {
  FaultFileSystem whole;
  Fill(whole);
  const Bytes sound = whole.Content(kPath);
  const Bytes fence = whole.Content(kFencePath);
  for (size_t at = 0; at < sound.size(); ++at) {
    INFO("byte " << at);
    Bytes content = sound;
    content[at] ^= std::byte{0x20};
    FaultFileSystem fs;
    fs.SetContent(kPath, content);
    fs.SetContent(kFencePath, fence);
    auto ledger = OpenReceiverLedger(fs, "/state", kQuarantine);
    REQUIRE(ledger.ok());
    REQUIRE((*ledger)->state().stream() == kStream);
  }
}

TEST_CASE("a sender with a damaged ledger keeps its fence and opens only a new stream",
          "[ledger]") {
  FaultFileSystem fs;
  const std::string path = "/state/sender.ledger";
  {
    auto ledger = OpenSenderLedger(fs, "/state");
    REQUIRE((*ledger)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(8)}).ok());
    for (const uint64_t version : {1, 2, 3}) {
      REQUIRE((*ledger)
                  ->Append(VersionPublished{.stream = kStream,
                                            .version = WeightVersion(version),
                                            .base = std::nullopt,
                                            .state_token = {.lane0 = 1, .lane1 = 1}})
                  .ok());
    }
  }
  Bytes content = fs.Content(path);
  content[20] ^= std::byte{1};
  fs.SetContent(path, content);
  CHECK(absl::IsDataLoss(OpenSenderLedger(fs, "/state").status()));
  auto ledger = OpenSenderLedger(fs, "/state", kQuarantine);
  REQUIRE(ledger.ok());
  CHECK((*ledger)->state().rank_epoch() == RankEpoch(8));
  const auto open = [&](const StreamId& stream, uint64_t epoch) {
    return (*ledger)->Append(StreamOpened{.stream = stream, .rank_epoch = RankEpoch(epoch)});
  };
  CHECK(absl::IsFailedPrecondition(open(kOld, 99)));
  const Status same = open(kStream, 9);
  CHECK(absl::IsFailedPrecondition(same));
  CHECK_THAT(std::string(Message(same)),
             Catch::Contains("ledger was lost") && Catch::Contains("dws.Stream.new()"));
  ledger->reset();
  auto again = OpenSenderLedger(fs, "/state");
  REQUIRE(again.ok());
  CHECK_THAT(std::string(Message((*again)->state().CheckOpen(kStream))),
             Catch::Contains("ledger was lost"));
  CHECK((*again)->state().rank_epoch() == RankEpoch(8));
  CHECK((*again)->Append(StreamOpened{.stream = kNew, .rank_epoch = RankEpoch(9)}).ok());
}

TEST_CASE("a crash between a sender's fence and its record loses no version numbers", "[ledger]") {
  FaultFileSystem fs;
  const auto open = [](SenderLedger& ledger, uint64_t epoch) {
    return ledger.Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(epoch)});
  };
  {
    auto ledger = OpenSenderLedger(fs, "/state");
    REQUIRE(open(**ledger, 8).ok());
  }
  const Bytes before = fs.Content("/state/sender.ledger");
  {
    auto ledger = OpenSenderLedger(fs, "/state");
    REQUIRE(open(**ledger, 9).ok());
  }
  fs.SetContent("/state/sender.ledger", before);
  auto ledger = OpenSenderLedger(fs, "/state");
  REQUIRE(ledger.ok());
  CHECK((*ledger)->state().rank_epoch() == RankEpoch(9));
  CHECK(open(**ledger, 10).ok());
}

TEST_CASE("without an intact fence a damaged ledger is refused even with the flag", "[ledger]") {
  for (const bool missing : {true, false}) {
    FaultFileSystem fs;
    Fill(fs);
    const Bytes content(400, std::byte{1});
    fs.SetContent(kPath, content);
    if (missing) {
      REQUIRE(fs.Remove(kFencePath).ok());
    } else {
      Bytes fence = fs.Content(kFencePath);
      fence[20] ^= std::byte{1};
      fs.SetContent(kFencePath, fence);
    }
    const Status status = OpenReceiverLedger(fs, "/state", kQuarantine).status();
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(Message(status)), Catch::Contains(kPath) &&
                                                 Catch::Contains(kFencePath) &&
                                                 Catch::Contains("stop every old trainer"));
    CHECK(fs.Content(kPath) == content);
    CHECK(fs.List("/state")->size() == (missing ? 1 : 2));
  }
}

TEST_CASE("a missing ledger starts from the fence and is empty without a fence", "[ledger]") {
  FaultFileSystem fs;
  Fill(fs);
  REQUIRE(fs.Remove(kPath).ok());
  {
    auto ledger = OpenReceiverLedger(fs, "/state");
    REQUIRE(ledger.ok());
    CheckFenced(**ledger);
    CHECK_FALSE((*ledger)->state().committed().has_value());
  }
  REQUIRE(fs.Remove(kPath).ok());
  REQUIRE(fs.Remove(kFencePath).ok());
  auto empty = OpenReceiverLedger(fs, "/state");
  REQUIRE(empty.ok());
  CHECK_FALSE((*empty)->state().stream().has_value());
}

TEST_CASE("an intact ledger repairs its fence", "[ledger]") {
  FaultFileSystem fs;
  Fill(fs);
  const Bytes fence = fs.Content(kFencePath);
  fs.SetContent(kFencePath, Bytes(64, std::byte{3}));
  REQUIRE(OpenReceiverLedger(fs, "/state").ok());
  CHECK(fs.Content(kFencePath) == fence);
  REQUIRE(fs.Remove(kFencePath).ok());  // as an older DWS without fences leaves it
  REQUIRE(OpenReceiverLedger(fs, "/state").ok());
  CHECK(fs.Content(kFencePath) == fence);
}

TEST_CASE("an older copy of the ledger is raised to the fence", "[ledger]") {
  FaultFileSystem fs;
  Fill(fs);
  const Bytes copy = fs.Content(kPath);
  {
    auto ledger = OpenReceiverLedger(fs, "/state");
    REQUIRE((*ledger)->Append(StreamAccepted{.stream = kNew}).ok());
  }
  fs.SetContent(kPath, copy);
  auto ledger = OpenReceiverLedger(fs, "/state");
  REQUIRE(ledger.ok());
  CHECK((*ledger)->state().stream() == kNew);
  CHECK((*ledger)->state().committed()->version == WeightVersion(2));
}

TEST_CASE("after a crash at any step of accepting a stream the fence is not below the ledger",
          "[ledger]") {
  for (int step = 1; step <= 3; ++step) {
    FaultFileSystem fs;
    Fill(fs);
    {
      auto ledger = OpenReceiverLedger(fs, "/state");
      fs.FailOperation(step, UnavailableError("the power goes"));
      CHECK_FALSE((*ledger)->Append(StreamAccepted{.stream = kNew}).ok());
      CHECK((*ledger)->state().stream() == kStream);
    }
    fs.LosePower();
    auto again = OpenReceiverLedger(fs, "/state");
    REQUIRE(again.ok());
    CHECK((*again)->state().stream() == (step == 1 ? kStream : kNew));
    // The ledger can still be appended to.
    REQUIRE((*again)->Append(StreamAccepted{.stream = kNew}).ok());
  }
}

TEST_CASE("a crash while a ledger is set aside loses neither the ledger nor the fence",
          "[ledger]") {
  for (int step = 1; step <= 2; ++step) {
    FaultFileSystem fs;
    Fill(fs);
    Bytes content = fs.Content(kPath);
    content[20] ^= std::byte{1};
    fs.SetContent(kPath, content);
    fs.FailOperation(step, UnavailableError("the power goes"));
    CHECK(absl::IsUnavailable(OpenReceiverLedger(fs, "/state", kQuarantine).status()));
    fs.LosePower();
    auto again = OpenReceiverLedger(fs, "/state", kQuarantine);
    REQUIRE(again.ok());
    CheckFenced(**again);
    CHECK(fs.Content(kPath + ".damaged-1") == content);
  }
}

TEST_CASE("a forgotten stream fences no other in the ledger or in the fence", "[ledger]") {
  FaultFileSystem fs;
  Fill(fs);
  {
    auto ledger = OpenReceiverLedger(fs, "/state");
    REQUIRE((*ledger)->Append(StreamForgotten{.stream = kStream}).ok());
  }
  fs.LosePower();
  {
    auto ledger = OpenReceiverLedger(fs, "/state");
    CHECK_FALSE((*ledger)->state().stream().has_value());
  }
  REQUIRE(fs.Remove(kPath).ok());
  auto ledger = OpenReceiverLedger(fs, "/state");
  REQUIRE((*ledger)->Append(StreamAccepted{.stream = kOld}).ok());
}

TEST_CASE("a bounded number of damaged ledgers is kept and none is overwritten", "[ledger]") {
  FaultFileSystem fs;
  Fill(fs);
  for (size_t number = 1; number <= limits::kDamagedLedgersMax; ++number) {
    const Bytes content(number, std::byte{5});
    fs.SetContent(kPath, content);
    REQUIRE(OpenReceiverLedger(fs, "/state", kQuarantine).ok());
    CHECK(fs.Content(fmt::format("{}.damaged-{}", kPath, number)) == content);
  }
  fs.SetContent(kPath, Bytes(99, std::byte{5}));
  const Status status = OpenReceiverLedger(fs, "/state", kQuarantine).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(Message(status)), Catch::Contains("look at the disk"));
  CHECK(fs.Content(kPath).size() == 99);
}

// Uses the real file system because the fake one has no folders.
TEST_CASE("a folder in the place of the ledger is treated as a damaged ledger", "[ledger]") {
  const TempFolder state;
  const std::string path = state.File("receiver.ledger");
  PosixFileSystem fs;
  {
    auto ledger = OpenReceiverLedger(fs, state.path());
    REQUIRE((*ledger)->Append(StreamAccepted{.stream = kStream}).ok());
  }
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/something");
  const Status refused = OpenReceiverLedger(fs, state.path()).status();
  CHECK(absl::IsDataLoss(refused));
  CHECK_THAT(std::string(Message(refused)),
             Catch::Contains("expected a file at " + path + ", found a folder") &&
                 Catch::Contains("nothing was changed") &&
                 Catch::Contains("--quarantine-damaged-ledger"));
  {
    auto ledger = OpenReceiverLedger(fs, state.path(), kQuarantine);
    REQUIRE(ledger.ok());
    CheckFenced(**ledger);
  }
  CHECK(std::filesystem::is_directory(path + ".damaged-1/something"));
  CHECK(OpenReceiverLedger(fs, state.path()).ok());

  // If the fence is a folder too, it is not known which trainers to refuse.
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);
  std::filesystem::remove(state.File("receiver.fence"));
  std::filesystem::create_directories(state.File("receiver.fence"));
  const Status both = OpenReceiverLedger(fs, state.path(), kQuarantine).status();
  CHECK(absl::IsDataLoss(both));
  CHECK_THAT(std::string(Message(both)),
             Catch::Contains(path) && Catch::Contains(state.File("receiver.fence") + ", found") &&
                 Catch::Contains("stop every old trainer"));
  CHECK(std::filesystem::is_directory(path));
}

TEST_CASE("a folder in the place of an intact ledger's fence is set aside with the flag",
          "[ledger]") {
  const TempFolder state;
  const std::string fence = state.File("receiver.fence");
  PosixFileSystem fs;
  {
    auto ledger = OpenReceiverLedger(fs, state.path());
    REQUIRE((*ledger)->Append(StreamAccepted{.stream = kStream}).ok());
  }
  std::filesystem::remove(fence);
  std::filesystem::create_directories(fence + "/something");
  const Status refused = OpenReceiverLedger(fs, state.path()).status();
  CHECK(absl::IsDataLoss(refused));
  CHECK_THAT(std::string(Message(refused)),
             Catch::Contains("expected a file at " + fence + ", found a folder") &&
                 Catch::Contains("--quarantine-damaged-ledger"));
  CHECK(std::filesystem::is_directory(fence + "/something"));
  CHECK(OpenReceiverLedger(fs, state.path(), kQuarantine).ok());
  CHECK(std::filesystem::is_directory(fence + ".damaged-1/something"));
  // The new fence has the same content: without the ledger old trainers stay refused.
  std::filesystem::remove(state.File("receiver.ledger"));
  auto ledger = OpenReceiverLedger(fs, state.path());
  REQUIRE(ledger.ok());
  CheckFenced(**ledger);
}

TEST_CASE("a ledger of a newer DWS or of another daemon is refused and not set aside", "[ledger]") {
  FaultFileSystem fs;
  REQUIRE(OpenReceiverLedger(fs, "/state").ok());
  Bytes newer = fs.Content(kPath);
  newer[8] = std::byte{2};
  fs.SetContent(kPath, newer);
  CHECK(absl::IsFailedPrecondition(OpenReceiverLedger(fs, "/state", kQuarantine).status()));

  FaultFileSystem other;
  {
    auto sender = OpenSenderLedger(other, "/state");
    REQUIRE((*sender)->Append(StreamOpened{.stream = kStream, .rank_epoch = RankEpoch(1)}).ok());
  }
  other.SetContent(kPath, other.Content("/state/sender.ledger"));
  CHECK(absl::IsFailedPrecondition(OpenReceiverLedger(other, "/state", kQuarantine).status()));
  CHECK(other.Content(kPath) == other.Content("/state/sender.ledger"));
}

}  // namespace
}  // namespace dws
