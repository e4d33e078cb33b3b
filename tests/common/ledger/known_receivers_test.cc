#include "common/ledger/known_receivers.h"

#include <catch2/catch.hpp>

#include "common/base/bytes.h"
#include "common/model/limits.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

const std::vector<KnownReceiver> kTwo = {
    {.id = "rollout-0", .present = true, .last_seen_unix_seconds = 1'700'000'000},
    {.id = std::string("a\nb\0 \x1b", 6), .present = false, .last_seen_unix_seconds = 0}};

}  // namespace

TEST_CASE("the file of known receivers has the bytes that LEDGER.md describes", "[ledger]") {
  const std::vector<KnownReceiver> one = {kTwo.front()};
  const std::string text = FormatKnownReceivers(one);
  CHECK(text.starts_with("DWSKNOWN 1\n1 1700000000 726f6c6c6f75742d30\nsum "));
  CHECK(text.size() == 11 + 32 + 4 + 32 + 1);
}

TEST_CASE("known receivers are read as they were written whatever bytes their ids have",
          "[ledger]") {
  const auto parsed = ParseKnownReceivers(FormatKnownReceivers(kTwo));
  REQUIRE(parsed.ok());
  CHECK(*parsed == kTwo);
  CHECK(ParseKnownReceivers(FormatKnownReceivers({}))->empty());
}

TEST_CASE("as many known receivers as a sender takes fit the file's limit", "[ledger]") {
  std::vector<KnownReceiver> most(limits::kReceiversMax,
                                  {.id = std::string(limits::kIdBytesMax, 'i'),
                                   .present = true,
                                   .last_seen_unix_seconds = ~uint64_t{0}});
  const std::string text = FormatKnownReceivers(most);
  CHECK(text.size() <= limits::kKnownReceiversBytesMax);
  CHECK(ParseKnownReceivers(text)->size() == limits::kReceiversMax);
}

TEST_CASE("a file of known receivers with a flipped or missing byte is damaged", "[ledger]") {
  const std::string whole = FormatKnownReceivers(kTwo);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    CHECK(absl::IsDataLoss(ParseKnownReceivers(flipped).status()));
    CHECK(absl::IsDataLoss(ParseKnownReceivers(whole.substr(0, i)).status()));
  }
}

TEST_CASE("a missing file of known receivers is empty and another file is an error", "[ledger]") {
  TempFolder folder;
  PosixFileSystem files;
  CHECK(LoadKnownReceivers(files, folder.path())->empty());
  REQUIRE(SaveKnownReceivers(files, folder.path(), kTwo).ok());
  CHECK(*LoadKnownReceivers(files, folder.path()) == kTwo);
  REQUIRE(files.ReplaceFile(folder.File("receivers.known"), AsBytes("DWSLEDGR")).ok());
  const Status status = LoadKnownReceivers(files, folder.path()).status();
  CHECK(absl::IsDataLoss(status));
  CHECK(Message(status).find(folder.File("receivers.known")) != std::string_view::npos);
}

}  // namespace dws
