#include "common/memory/gradients/outbox.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "tests/common/memory/gradients/gradients.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using gradients::Bytes;
using gradients::BytesOf;
using gradients::Random;

constexpr std::chrono::seconds kLong{60};

UniqueFd Again(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

HostRegion Map(const OutboxHandles& handles, Access access = Access::kReadWrite) {
  Result<HostRegion> mapped = HostRegion::Map(Again(handles.region), handles.size_bytes, access);
  REQUIRE(mapped.ok());
  return *std::move(mapped);
}

// Both ends in one process, in two mappings of the memory.
struct Outbox {
  explicit Outbox(OutboxGeometry geometry = {.slot_count = 4, .data_bytes = 1024})
      : writer(OutboxWriter::Create(geometry, handles).value()),
        rank(Map(handles)),
        reader(OutboxReader::Open(Map(handles), Again(handles.wake),
                                  {.unit_count = 3, .owner_count = 2})
                   .value()) {}

  std::byte* Slot(uint32_t slot) const { return rank.mutable_bytes().data() + 64 + 64 * slot; }

  OutboxHandles handles;
  OutboxWriter writer;
  HostRegion rank;  // what a rank that does not keep the rules can write
  OutboxReader reader;
};

OutboxPiece SomePiece(uint32_t slot) {
  return {.slot = slot,
          .unit = 2,
          .owner = 1,
          .dtype = DType::kF32,
          .minibatch = 7,
          .term = 9,
          .attempt = 3,
          .number = 40 - slot,
          .offset_bytes = slot * 16,
          .size_bytes = 16};
}

TEST_CASE("an outbox has the bytes that OUTBOX.md says", "[outbox]") {
  Outbox outbox;
  outbox.writer.data()[32] = std::byte{0x55};
  outbox.writer.Fill(SomePiece(2));
  const ByteSpan bytes = outbox.rank.bytes();
  REQUIRE(bytes.size() == 4096 + 1024);
  CHECK(AsText(bytes.first(8)) == "DWSOUTBX");
  const auto words = gradients::ValuesOf<uint32_t>(bytes.first(64));
  CHECK(std::vector(words.begin() + 2, words.begin() + 6) == std::vector<uint32_t>{1, 4, 1024, 0});
  CHECK(LoadLe<uint64_t>(bytes.data() + 24) == 0x2EE66A6DCB986646);
  CHECK(std::all_of(words.begin() + 8, words.end(), [](uint32_t word) { return word == 0; }));
  CHECK(gradients::ValuesOf<uint32_t>(bytes.subspan(64 + 128, 64)) ==
        std::vector<uint32_t>{1, 2, 1, 13, 7, 0, 38, 0, 3, 0, 32, 0, 16, 0, 9, 0});
  CHECK(bytes[4096 + 32] == std::byte{0x55});
}

TEST_CASE("pieces are taken once, in order of their numbers, and slots are used again",
          "[outbox]") {
  Outbox outbox;
  CHECK(outbox.reader.Take()->empty());
  for (const uint32_t slot : {0, 1, 3}) outbox.writer.Fill(SomePiece(slot));
  CHECK(*outbox.reader.Wait(kLong));
  const Result<std::vector<OutboxPiece>> taken = outbox.reader.Take();
  REQUIRE(taken.ok());
  CHECK((*taken == std::vector{SomePiece(3), SomePiece(1), SomePiece(0)}));
  CHECK(outbox.reader.Take()->empty());
  CHECK_FALSE(outbox.writer.IsFree(1));
  CHECK(outbox.writer.IsFree(2));

  outbox.reader.Free(SomePiece(1));
  CHECK(*outbox.writer.Wait(kLong));
  CHECK(outbox.writer.IsFree(1));
  OutboxPiece next = SomePiece(1);
  next.number = 41;
  next.size_bytes = 0;
  outbox.writer.Fill(next);
  CHECK((*outbox.reader.Take() == std::vector{next}));
}

TEST_CASE("a writer whose outbox is full waits, and every piece arrives as it was written",
          "[outbox]") {
  constexpr uint32_t kSlots = 3;
  constexpr uint64_t kPieces = 2000;
  constexpr uint64_t kPieceBytes = 512;
  Outbox outbox({.slot_count = kSlots, .data_bytes = kSlots * kPieceBytes});
  std::thread rank([&] {
    for (uint64_t number = 0; number < kPieces; ++number) {
      std::optional<uint32_t> slot;
      while (!slot.has_value()) {
        for (uint32_t s = 0; s < kSlots && !slot.has_value(); ++s) {
          if (outbox.writer.IsFree(s)) slot = s;
        }
        if (!slot.has_value()) static_cast<void>(outbox.writer.Wait(kLong));
      }
      const MutableByteSpan bytes = outbox.writer.data().subspan(*slot * kPieceBytes, kPieceBytes);
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(number));
      outbox.writer.Fill({.slot = *slot,
                          .dtype = DType::kBF16,
                          .number = number,
                          .offset_bytes = *slot * kPieceBytes,
                          .size_bytes = kPieceBytes});
    }
  });
  uint64_t next = 0;
  bool whole = true;
  while (next < kPieces) {
    const Result<std::vector<OutboxPiece>> taken = outbox.reader.Take();
    REQUIRE(taken.ok());
    for (const OutboxPiece& piece : *taken) {
      CHECK(piece.number == next++);
      for (const std::byte byte : outbox.reader.Bytes(piece)) {
        whole = whole && byte == static_cast<std::byte>(piece.number);
      }
      outbox.reader.Free(piece);
    }
    if (taken->empty()) REQUIRE(outbox.reader.Wait(kLong).ok());
  }
  rank.join();
  CHECK(whole);
}

TEST_CASE("a slot that cannot be is refused by name, and no piece is taken", "[outbox]") {
  struct Row {
    size_t offset;
    uint64_t value;
    size_t width;
    std::string message;
  };
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::vector<Row> rows = {
      {0, 2, 4, "slot 1: expected it free or filled, found state 2"},
      {0, 0xFFFFFFFF, 4, "found state 4294967295"},
      {4, 3, 4, "unit below 3"},
      {8, 2, 4, "found unit 2 for owner 2"},
      {12, 0, 4, "found type 0"},
      {12, 16, 4, "found type 16"},
      {36, 1, 4, "expected zeros"},
      {40, 2, 8, "whole elements of F32, found 16 bytes at 2"},
      {40, 1012, 8, "slot 1: outbox: expected bytes of its 1024, found 16 at 1012"},
      {40, kMost - 3, 8, "expected bytes of its 1024"},
      {48, 18, 8, "found 18 bytes"},
      {48, 1012, 8, "found 1012 at 16"},
      {48, kMost - 15, 8, "expected bytes of its 1024"},
  };
  for (const Row& row : rows) {
    Outbox outbox;
    outbox.writer.Fill(SomePiece(0));
    outbox.writer.Fill(SomePiece(1));
    std::memcpy(outbox.Slot(1) + row.offset, &row.value, row.width);
    const Status refused = outbox.reader.Take().status();
    CHECK(absl::IsInvalidArgument(refused));
    CHECK_THAT(std::string(Message(refused)), Contains(row.message));
    CHECK(LoadLe<uint32_t>(outbox.Slot(0)) == 1);  // not offered
  }
}

TEST_CASE("what a rank writes over a piece that was taken changes nothing but its bytes",
          "[outbox]") {
  Outbox outbox;
  outbox.writer.Fill(SomePiece(1));
  const std::vector<OutboxPiece> taken = outbox.reader.Take().value();
  REQUIRE((taken == std::vector{SomePiece(1)}));
  std::fill(outbox.rank.mutable_bytes().begin(), outbox.rank.mutable_bytes().end(),
            std::byte{0xFF});
  CHECK(outbox.reader.Bytes(taken[0]).size() == 16);
  CHECK(outbox.reader.Bytes(taken[0])[15] == std::byte{0xFF});
  CHECK(absl::IsInvalidArgument(outbox.reader.Take().status()));  // the other slots
  std::fill(outbox.Slot(0), outbox.Slot(4), std::byte{0});
  StoreLe(outbox.Slot(1), uint32_t{1});
  CHECK(outbox.reader.Take()->empty());  // it is taken, whatever its slot says
  outbox.reader.Free(taken[0]);
  CHECK(outbox.writer.IsFree(1));
}

TEST_CASE("a region that is no outbox of its size is refused by name", "[outbox]") {
  OutboxHandles handles;
  const OutboxGeometry geometry = {.slot_count = 100, .data_bytes = 77};
  const Result<OutboxWriter> writer = OutboxWriter::Create(geometry, handles);
  REQUIRE(writer.ok());
  CHECK(handles.size_bytes == 8192 + 77);
  const HostRegion rank = Map(handles);
  const auto refusal = [&] {
    const Status status = OutboxMemory::Open(Map(handles, Access::kReadOnly)).status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(Message(status));
  };
  CHECK(OutboxMemory::Open(Map(handles, Access::kReadOnly)).ok());
  CHECK(absl::IsInvalidArgument(
      OutboxReader::Open(Map(handles, Access::kReadOnly), Again(handles.wake), {}).status()));
  for (size_t byte = 0; byte < 64; ++byte) {  // any change of the header
    std::byte& changed = rank.mutable_bytes()[byte];
    changed ^= std::byte{0x10};
    CHECK_THAT(refusal(), Contains(byte < 12 ? "expected DWSOUTBX of version 1" : "checksum"));
    changed ^= std::byte{0x10};
  }
  std::byte* const header = rank.mutable_bytes().data();
  WriteOutboxHeader({.slot_count = 100, .data_bytes = 78}, header);
  CHECK_THAT(refusal(), Contains("expected a region of 8270, found 8269"));
  WriteOutboxHeader({.slot_count = 0, .data_bytes = 77}, header);
  CHECK_THAT(refusal(), Contains("slots, found 0"));
  WriteOutboxHeader({.slot_count = kOutboxSlotsMax + 1, .data_bytes = 77}, header);
  CHECK_THAT(refusal(), Contains("1 to 65536 slots, found 65537"));
  WriteOutboxHeader({.slot_count = 1, .data_bytes = 0}, header);
  CHECK_THAT(refusal(), Contains("bytes of data, found 0"));
  WriteOutboxHeader({.slot_count = 1, .data_bytes = std::numeric_limits<uint64_t>::max()}, header);
  CHECK_THAT(refusal(), Contains("bytes of data, found 18446744073709551615"));
  Result<CreatedRegion> small = CreateHostRegion("small", 63);
  REQUIRE(small.ok());
  CHECK(absl::IsInvalidArgument(OutboxMemory::Open(std::move(small->region)).status()));
}

TEST_CASE("another sender of the host reads bytes of the outbox, and none beyond it", "[outbox]") {
  Outbox outbox;
  outbox.writer.data()[1023] = std::byte{9};
  const Result<OutboxMemory> memory = OutboxMemory::Open(Map(outbox.handles, Access::kReadOnly));
  REQUIRE(memory.ok());
  CHECK(memory->Bytes(1020, 4)->back() == std::byte{9});
  CHECK(memory->Bytes(1024, 0)->empty());
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const auto& [offset, size] :
       {std::pair<uint64_t, uint64_t>{1025, 0}, {1021, 4}, {0, 1025}, {8, kMost - 3}, {kMost, 1}}) {
    CHECK(absl::IsInvalidArgument(memory->Bytes(offset, size).status()));
  }
}

TEST_CASE("a side that waits learns that the other is gone, and a full socket stops nobody",
          "[outbox]") {
  auto ends = OutboxWake::MakePair();
  REQUIRE(ends.ok());
  const OutboxWake one(std::move(ends->first));
  {
    const OutboxWake other(std::move(ends->second));
    CHECK_FALSE(*one.Wait(std::chrono::milliseconds(0)));
    for (int i = 0; i < 100'000; ++i) other.Notify();  // more than a socket holds
    CHECK(*one.Wait(kLong));
    one.Notify();
    CHECK(*other.Wait(kLong));
  }
  while (one.Wait(std::chrono::milliseconds(0)).ok()) {
  }
  CHECK(absl::IsUnavailable(one.Wait(kLong).status()));
  one.Notify();
  const OutboxWake file(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)));
  CHECK(absl::IsUnavailable(file.Wait(kLong).status()));
  file.Notify();
}

}  // namespace
}  // namespace dws
