#include "common/ledger/file_ledger.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/model/limits.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

const std::string kPath = "/state/test.ledger";
constexpr size_t kHeadBytes = 16;
constexpr size_t kRecordHeadBytes = 32;

RawRecord Record(uint32_t type, std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {.type = type, .payload = {bytes.begin(), bytes.end()}};
}

struct Opened {
  Status status;
  std::unique_ptr<FileLedger> ledger;
  std::vector<std::string> records;  // "type:payload"
};

Opened Open(FileSystem& fs, const std::string& path = kPath,
            LedgerKind kind = LedgerKind::kReceiver) {
  Opened opened;
  auto ledger = FileLedger::Open(fs, path, kind, [&](uint32_t type, ByteSpan payload, uint64_t) {
    opened.records.push_back(fmt::format("{}:{}", type, AsText(payload)));
    return OkStatus();
  });
  opened.status = ledger.status();
  if (ledger.ok()) opened.ledger = *std::move(ledger);
  return opened;
}

void WriteRecords(FileSystem& fs, const std::vector<std::string>& texts) {
  Opened opened = Open(fs);
  REQUIRE(opened.status.ok());
  for (const std::string& text : texts) REQUIRE(opened.ledger->Append(Record(5, text)).ok());
}

TEST_CASE("records come back in order after closing, on a real disk", "[ledger]") {
  TempFolder folder;
  PosixFileSystem fs;
  const std::string path = folder.File("new/folder/receiver.ledger");
  {
    Opened opened = Open(fs, path);
    REQUIRE(opened.status.ok());
    CHECK(opened.records.empty());
    REQUIRE(opened.ledger->Append(Record(1, "one")).ok());
    REQUIRE(opened.ledger->Append(Record(2, "")).ok());
    REQUIRE(opened.ledger->Append(Record(3, std::string(4096, 'x'))).ok());
  }
  Opened opened = Open(fs, path);
  REQUIRE(opened.status.ok());
  REQUIRE(opened.records.size() == 3);
  CHECK(opened.records[0] == "1:one");
  CHECK(opened.records[1] == "2:");
  CHECK(opened.records[2].size() == 4098);
  REQUIRE(opened.ledger->Append(Record(4, "more")).ok());
}

TEST_CASE("two daemons cannot share a ledger", "[ledger]") {
  TempFolder folder;
  PosixFileSystem fs;
  const Opened first = Open(fs, folder.File("l"));
  REQUIRE(first.status.ok());
  const Opened second = Open(fs, folder.File("l"));
  CHECK(absl::IsUnavailable(second.status));
  CHECK_THAT(std::string(Message(second.status)), Catch::Contains(folder.File("l")));
}

TEST_CASE("a torn last record of any length is cut off and appending continues", "[ledger]") {
  const size_t last_bytes = kRecordHeadBytes + 6;
  for (size_t torn = 1; torn < last_bytes; ++torn) {
    FaultFileSystem fs;
    WriteRecords(fs, {"first", "second"});
    std::vector<std::byte> content = fs.Content(kPath);
    content.resize(content.size() - torn);
    fs.SetContent(kPath, content);
    {
      Opened opened = Open(fs);
      REQUIRE(opened.status.ok());
      REQUIRE(opened.records == std::vector<std::string>{"5:first"});
      REQUIRE(opened.ledger->Append(Record(5, "third")).ok());
    }
    const Opened again = Open(fs);
    REQUIRE(again.records == std::vector<std::string>{"5:first", "5:third"});
  }
}

TEST_CASE("a tail of zeros from a power cut is cut off", "[ledger]") {
  FaultFileSystem fs;
  WriteRecords(fs, {"first"});
  std::vector<std::byte> content = fs.Content(kPath);
  content.resize(content.size() + 4096);
  fs.SetContent(kPath, content);
  const Opened opened = Open(fs);
  REQUIRE(opened.status.ok());
  CHECK(opened.records == std::vector<std::string>{"5:first"});
}

TEST_CASE("a flipped bit before an intact record is refused with its offset", "[ledger]") {
  FaultFileSystem fs;
  WriteRecords(fs, {"first", "second", "third"});
  const std::vector<std::byte> sound = fs.Content(kPath);
  const size_t first = kHeadBytes;
  const size_t second = first + kRecordHeadBytes + 5;
  const size_t third = second + kRecordHeadBytes + 6;
  // Every byte of the first two records, including their lengths.
  for (size_t at = first; at < third; ++at) {
    std::vector<std::byte> content = sound;
    content[at] ^= std::byte{0x10};
    fs.SetContent(kPath, content);
    const Opened opened = Open(fs);
    REQUIRE(absl::IsDataLoss(opened.status));
    const std::string expected = fmt::format("offset {} is damaged", at < second ? first : second);
    REQUIRE_THAT(std::string(Message(opened.status)),
                 Catch::Contains(expected) && Catch::Contains("Restore"));
    REQUIRE(fs.Content(kPath) == content);
  }
}

TEST_CASE("an intact record that was moved to another offset is damage", "[ledger]") {
  FaultFileSystem fs;
  WriteRecords(fs, {"aaaa", "bbbb", "cccc"});
  std::vector<std::byte> content = fs.Content(kPath);
  const size_t size = kRecordHeadBytes + 4;
  std::swap_ranges(content.begin() + kHeadBytes, content.begin() + kHeadBytes + size,
                   content.begin() + kHeadBytes + size);
  fs.SetContent(kPath, content);
  CHECK(absl::IsDataLoss(Open(fs).status));
}

TEST_CASE("a damaged tail longer than one record is damage and is not cut off", "[ledger]") {
  FaultFileSystem fs;
  WriteRecords(fs, {"first"});
  std::vector<std::byte> content = fs.Content(kPath);
  content.resize(content.size() + 5000, std::byte{0x55});
  fs.SetContent(kPath, content);
  CHECK(absl::IsDataLoss(Open(fs).status));
  CHECK(fs.Content(kPath) == content);
}

TEST_CASE("a file of another program or daemon or format version is refused by name", "[ledger]") {
  FaultFileSystem fs;
  fs.SetContent(kPath, {});
  CHECK(absl::IsDataLoss(Open(fs).status));
  const ByteSpan text = AsBytes("a file of somebody else");
  fs.SetContent(kPath, {text.begin(), text.end()});
  const Status no_ledger = Open(fs).status;
  CHECK(absl::IsDataLoss(no_ledger));
  CHECK_THAT(std::string(Message(no_ledger)),
             Catch::Contains("expected it to begin with DWSLEDGR"));

  CHECK(fs.Remove(kPath).ok());
  REQUIRE(Open(fs).status.ok());
  const Status other_kind = Open(fs, kPath, LedgerKind::kSender).status;
  CHECK(absl::IsFailedPrecondition(other_kind));
  CHECK_THAT(std::string(Message(other_kind)), Catch::Contains("ledger of a sender"));

  std::vector<std::byte> content = fs.Content(kPath);
  content[8] = std::byte{2};
  fs.SetContent(kPath, content);
  CHECK_THAT(std::string(Message(Open(fs).status)), Catch::Contains("found 2"));
}

TEST_CASE("an append is durable before it is acknowledged", "[ledger]") {
  FaultFileSystem fs;
  Opened opened = Open(fs);
  REQUIRE(opened.status.ok());
  REQUIRE(opened.ledger->Append(Record(5, "kept")).ok());
  opened.ledger.reset();
  fs.LosePower();
  CHECK(Open(fs).records == std::vector<std::string>{"5:kept"});
}

TEST_CASE("after a failed append nothing is appended until a rewrite", "[ledger]") {
  // 1 fails the write, 2 the sync.
  for (const int failing : {1, 2}) {
    FaultFileSystem fs;
    Opened opened = Open(fs);
    REQUIRE(opened.ledger->Append(Record(5, "one")).ok());
    fs.FailOperation(failing, ResourceExhaustedError("disk full"));
    CHECK(absl::IsResourceExhausted(opened.ledger->Append(Record(5, "two"))));
    CHECK(opened.ledger->needs_rewrite());
    CHECK(absl::IsFailedPrecondition(opened.ledger->Append(Record(5, "two"))));

    fs.FailOperation(1, ResourceExhaustedError("disk full"));
    const std::vector<RawRecord> records = {Record(5, "one")};
    CHECK(absl::IsResourceExhausted(opened.ledger->Rewrite(records)));
    REQUIRE(opened.ledger->Rewrite(records).ok());
    REQUIRE(opened.ledger->Append(Record(5, "two")).ok());
    opened.ledger.reset();
    fs.LosePower();
    CHECK(Open(fs).records == std::vector<std::string>{"5:one", "5:two"});
  }
}

TEST_CASE("an error of the replay function ends Open and has the record's offset", "[ledger]") {
  FaultFileSystem fs;
  WriteRecords(fs, {"one", "two"});
  int seen = 0;
  const auto ledger =
      FileLedger::Open(fs, kPath, LedgerKind::kReceiver, [&](uint32_t, ByteSpan, uint64_t) {
        return ++seen == 2 ? FailedPreconditionError("no") : OkStatus();
      });
  CHECK(absl::IsFailedPrecondition(ledger.status()));
  CHECK_THAT(std::string(Message(ledger.status())), Catch::Contains("offset 51: no"));
}

}  // namespace
}  // namespace dws
