// Fetching a delta while its sender captures it, from a sender whose answers the test chooses.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/receiver_daemon/transfer/grpc/sync_links_fixture.h"

namespace dws {
namespace {

using Writer = grpc::ServerWriter<v1::FetchChunk>;

// A frame of the test's layout, whose bytes are letters.
v1::FetchChunk Frame(uint32_t slice, uint32_t first, uint32_t count, size_t size = 100) {
  v1::FetchChunk chunk;
  v1::EarlyFrame& frame = *chunk.add_frames();
  frame.set_rank_slice(slice);
  frame.mutable_entry()->set_first_block(first);
  frame.mutable_entry()->set_block_count(count);
  frame.mutable_entry()->set_size_bytes(size);
  frame.mutable_entry()->set_checksum(slice * 100 + first);
  chunk.set_data(std::string(size, static_cast<char>('a' + slice)));
  return chunk;
}

v1::FetchChunk Head(uint64_t offset, uint64_t total, size_t size) {
  v1::FetchChunk chunk;
  chunk.set_object_bytes(total);
  chunk.set_offset(offset);
  chunk.set_data(std::string(size, 'h'));
  return chunk;
}

// The bytes that a fetch took, and the status with which it ended.
struct Fetched {
  std::vector<SpooledFrame> frames;
  std::string bytes;
  Status status;
  std::string head;
  uint64_t expected_bytes = 0;  // as progress shows
};

Fetched FetchEarly(Receiver& receiver, const SliceSelection& slices = std::nullopt,
                   std::function<bool()> wanted = {}, const Status& taking = OkStatus()) {
  Fetched fetched;
  const auto take = [&](std::span<const SpooledFrame> frames, const Spool& spool) -> Status {
    for (const SpooledFrame& frame : frames) {
      std::vector<std::byte> buffer;
      const auto bytes = spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer);
      REQUIRE(bytes.ok());
      fetched.bytes += AsText(*bytes);
      fetched.frames.push_back(frame);
    }
    return taking;
  };
  const SyncTarget target = receiver.Target();
  TransferProgress progress;
  const Spool::Options options{.folder = "/tmp",
                               .memory_bytes_max = 1 << 26,
                               .progress = &progress,
                               .wanted = std::move(wanted)};
  const auto head = receiver.grpc.ReadDeltaCapture(
      {target, TrainerRank(0)}, {.base = WeightVersion(4), .slices = slices}, options, take);
  fetched.status = head.status();
  fetched.expected_bytes = progress.total_bytes;
  if (head.ok()) fetched.head = AsText(*head);
  return fetched;
}

// `chunks`, then an orderly end.
void Send(FakeSender& sender, std::vector<v1::FetchChunk> chunks) {
  sender.early = [chunks = std::move(chunks)](grpc::ServerContext&, const v1::FetchRequest&,
                                              Writer& writer) {
    for (const v1::FetchChunk& chunk : chunks) writer.Write(chunk);
    return grpc::Status::OK;
  };
}

}  // namespace

TEST_CASE("frames are taken as they come, and the object's start at the end", "[sync]") {
  FakeSender sender;
  v1::FetchRequest asked;
  std::atomic<bool> go = false;
  sender.early = [&](grpc::ServerContext&, const v1::FetchRequest& request, Writer& writer) {
    asked = request;
    writer.Write(Frame(1, 0, 1, 300'000));
    if (!Eventually([&] { return go.load(); })) return grpc::Status::CANCELLED;
    v1::FetchChunk both = Frame(0, 0, 1);
    const v1::FetchChunk second = Frame(0, 1, 1, 50);
    *both.add_frames() = second.frames(0);
    both.mutable_data()->append(second.data());
    writer.Write(both);
    writer.Write(Head(0, 100, 60));
    writer.Write(Head(60, 100, 40));
    return grpc::Status::OK;
  };
  Receiver receiver(sender.address());
  receiver.links.Start();
  size_t groups = 0;
  std::string bytes;
  const SyncTarget target = receiver.Target();
  const auto head = receiver.grpc.ReadDeltaCapture(
      {target, TrainerRank(0)}, {.base = WeightVersion(4), .slices = std::nullopt},
      {.folder = "/tmp", .memory_bytes_max = 1 << 20},
      [&](std::span<const SpooledFrame> frames, const Spool& spool) {
        ++groups;
        if (groups == 1) {  // before the rest is sent
          CHECK(frames.size() == 1);
          CHECK(frames[0].slice == RankSlice(1));
          CHECK(frames[0].entry.checksum == 100);
          CHECK_FALSE(go);
          go = true;
        }
        std::vector<std::byte> buffer;
        for (const SpooledFrame& frame : frames) {
          bytes += AsText(*spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
        }
        return OkStatus();
      });
  REQUIRE(head.ok());
  CHECK(AsText(*head) == std::string(100, 'h'));
  CHECK(groups == 2);
  CHECK(bytes == std::string(300'000, 'b') + std::string(150, 'a'));
  CHECK(asked.version() == 5);
  CHECK(asked.base_version() == 4);
  CHECK_FALSE(asked.has_only());
}

TEST_CASE("deltas are fetched early from senders of other hosts, unless it is said otherwise",
          "[sync]") {
  const std::vector<std::string> addresses = {"unix:/run/dws.sock", "127.0.0.2:7700",
                                              "localhost:7700",     "[::1]:7700",
                                              "192.0.2.7:7700",     "trainer-0.example:7700"};
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription(addresses, std::nullopt, changed, clock);
  const auto choice =
      GENERATE(std::optional<bool>(), std::optional<bool>(true), std::optional<bool>(false));
  SyncLinks links(
      {.addresses = addresses, .job_id = "job", .receiver_id = "r0", .early_deltas = choice},
      subscription, clock);
  const GrpcSource grpc(links, ProfileChoice::kAuto, clock);
  for (uint32_t i = 0; i < addresses.size(); ++i) {
    const SyncTarget target{
        .stream = kStream, .version = WeightVersion(2), .ranks = {{.sender = SenderIndex(i)}}};
    CAPTURE(addresses[i], choice.has_value());
    CHECK(grpc.reads_captures(Content::kDelta, {target, TrainerRank(0)}) ==
          choice.value_or(i >= 4));
  }
}

TEST_CASE("what breaks the protocol ends an early fetch with the reason", "[sync]") {
  FakeSender sender;
  std::string why;
  SliceSelection slices;
  const auto with = [&](std::vector<v1::FetchChunk> chunks, const std::string& reason) {
    Send(sender, std::move(chunks));
    why = reason;
  };
  const v1::FetchChunk head = Head(0, 10, 10);
  SECTION("no such slice") {
    with({Frame(2, 0, 1), head}, "rank slice 2, which was not asked for");
  }
  SECTION("a slice that is not wanted") {
    slices = {RankSlice(1)};
    with({Frame(0, 0, 1), head}, "rank slice 0, which was not asked for");
  }
  SECTION("blocks twice") { with({Frame(0, 0, 1), Frame(0, 0, 1), head}, "between 1 and 2"); }
  SECTION("too many blocks") { with({Frame(0, 1, 2), head}, "between 0 and 2"); }
  SECTION("no blocks") { with({Frame(0, 0, 0), head}, "between 0 and 2"); }
  SECTION("another size") {
    v1::FetchChunk frame = Frame(0, 0, 1);
    frame.mutable_data()->push_back('x');
    with({frame, head}, "a chunk of 101 bytes, whose frames do not have that size");
  }
  SECTION("a frame larger than its chunk") {
    v1::FetchChunk frame = Frame(0, 0, 1);
    frame.mutable_data()->pop_back();
    with({frame, head}, "a chunk of 99 bytes, whose frames do not have that size");
  }
  SECTION("an empty chunk") { with({v1::FetchChunk()}, "without data"); }
  SECTION("a class table that is none") {
    v1::FetchChunk frame = Frame(0, 0, 1);
    frame.mutable_frames(0)->set_class_table("x");
    with({frame, head}, "class table");
  }
  SECTION("a frame after the start") { with({head, Frame(0, 0, 1)}, "or too late"); }
  SECTION("a large chunk") {
    with({Frame(0, 0, 1, limits::kFetchChunkBytesMax + 1), head}, "at most 1048576");
  }
  SECTION("a start with a hole") { with({Head(0, 10, 4), Head(5, 10, 5)}, "at 4 of 10"); }
  SECTION("a start that grows") { with({Head(0, 10, 4), Head(4, 11, 6)}, "at 4 of 10"); }
  SECTION("a start larger than any") { with({Head(0, uint64_t{1} << 40, 4)}, "at 0 of"); }
  Receiver receiver(sender.address());
  receiver.links.Start();
  const Fetched fetched = FetchEarly(receiver, slices);
  CHECK(absl::IsDataLoss(fetched.status));
  CHECK_THAT(std::string(Message(fetched.status)), Catch::Matchers::Contains(why));
  CHECK(fetched.expected_bytes < 1000);  // what is refused is not shown
}

TEST_CASE("an early fetch ends when the sender or the taker does", "[sync]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const auto hangs = [](grpc::ServerContext& context, const v1::FetchRequest&, Writer& writer) {
    writer.Write(Frame(0, 0, 1, 500'000));
    const bool cancelled = Eventually([&] { return context.IsCancelled(); });
    return cancelled ? grpc::Status::CANCELLED : grpc::Status::OK;
  };
  SECTION("it is given up by the sender") {
    sender.early = [](grpc::ServerContext&, const v1::FetchRequest&, Writer& writer) {
      writer.Write(Frame(0, 0, 1));
      return grpc::Status(grpc::StatusCode::ABORTED, "the trainer gave it up");
    };
    const Fetched fetched = FetchEarly(receiver);
    CHECK(absl::IsAborted(fetched.status));
    CHECK(Message(fetched.status) == "the trainer gave it up");
  }
  SECTION("without the object's start") {
    Send(sender, {Frame(0, 0, 1), Head(0, 10, 4)});
    CHECK(absl::IsUnavailable(FetchEarly(receiver).status));
  }
  SECTION("nothing is wanted any more") {
    sender.early = hangs;
    const auto since = std::chrono::steady_clock::now();
    const auto wanted = [&] {
      return std::chrono::steady_clock::now() - since < std::chrono::milliseconds(100);
    };
    CHECK(absl::IsCancelled(FetchEarly(receiver, std::nullopt, wanted).status));
  }
  SECTION("the taker fails") {
    sender.early = hangs;
    const Status failed = InternalError("the device fails");
    CHECK(FetchEarly(receiver, std::nullopt, {}, failed).status == failed);
  }
  SECTION("the receiver ends") {
    sender.early = hangs;
    receiver.Target();
    receiver.links.CancelFetches();
    CHECK_FALSE(FetchEarly(receiver).status.ok());
  }
}

TEST_CASE("more than may wait for the taker makes the sender wait, and nothing is lost", "[sync]") {
  FakeSender sender;
  sender.layout = MakeRankLayout(
      {{.tensor = {
            .name = "w", .dtype = DType::kBF16, .shape = {uint64_t{65'536} * 40}, .cuts = {}}}});
  std::vector<v1::FetchChunk> chunks;
  for (uint32_t block = 0; block < 40; ++block) chunks.push_back(Frame(0, block, 1, 1 << 20));
  chunks.push_back(Head(0, 10, 10));
  std::atomic<int> written = 0;
  sender.early = [&](grpc::ServerContext&, const v1::FetchRequest&, Writer& writer) {
    for (const v1::FetchChunk& chunk : chunks) written += writer.Write(chunk) ? 1 : 0;
    return grpc::Status::OK;
  };
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  uint64_t most = 0;
  uint32_t next = 0;
  const auto head = receiver.grpc.ReadDeltaCapture(
      {target, TrainerRank(0)}, {.base = WeightVersion(4), .slices = std::nullopt},
      {.folder = "/tmp", .memory_bytes_max = 1 << 26},
      [&](std::span<const SpooledFrame> frames, const Spool& spool) {
        most = std::max(most, spool.size_bytes());
        for (const SpooledFrame& frame : frames) CHECK(frame.entry.first_block == next++);
        CHECK(Eventually([&] { return written >= 17; }));
        return OkStatus();
      });
  REQUIRE(head.ok());
  CHECK(next == 40);
  CHECK(most <= uint64_t{17} << 20);
}

}  // namespace dws
