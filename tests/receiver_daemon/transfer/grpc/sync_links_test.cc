// The connections to senders: what is heard and answered, and objects that are fetched over them.
#include "receiver_daemon/transfer/grpc/sync_links.h"

#include <catch2/catch.hpp>

#include "tests/receiver_daemon/transfer/grpc/sync_links_fixture.h"

namespace dws {

TEST_CASE("a receiver identifies itself and reads announcements and answers with the nonce",
          "[sync]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  CHECK(target.version == WeightVersion(5));
  CHECK(target.stream == kStream);
  CHECK(target.ranks[0].nonce == 2);
  CHECK(sender.Heard()[0].hello().receiver_id() == "r0");
  CHECK(sender.Heard()[0].hello().job_id() == "job");
  CHECK(sender.Heard()[0].hello().have_version() == 0);

  receiver.links.Staged(target, TrainerRank(0));
  receiver.links.Committed(target, TrainerRank(0), {.pause_seconds = 0.5});
  receiver.links.Rejected(
      target, TrainerRank(0),
      {.last_good = WeightVersion(4), .reason = DataLossError("bad"), .slices = {RankSlice(1)}});
  REQUIRE(Eventually([&] { return sender.Heard().size() >= 4; }));
  const std::vector<v1::SyncUp> heard = sender.Heard();
  CHECK(heard[1].ack().nonce() == 2);
  CHECK(heard[1].ack().stage() == v1::Ack::STAGED);
  CHECK(heard[2].ack().pause_seconds() == 0.5);
  CHECK(heard[3].nack().last_good_version() == 4);
  CHECK(heard[3].nack().rank_slices(0) == 1);
}

TEST_CASE("a restarted sender is reconnected and gets the committed version", "[sync]") {
  auto sender = std::make_unique<FakeSender>();
  const int port = sender->port();
  Receiver receiver(sender->address());
  receiver.links.Start();
  receiver.Target();
  sender.reset();
  REQUIRE(Eventually([&] { return !receiver.subscription.Target().has_value(); }));
  const Digest token{.lane0 = 8, .lane1 = 9};
  receiver.subscription.SetLive(VersionAt{.stream = kStream, .version = WeightVersion(5)}, {token});
  FakeSender again(port);
  receiver.Target();
  REQUIRE(Eventually([&] { return again.HeardAck(v1::Ack::COMMITTED, 5); }));
  for (const v1::SyncUp& up : again.Heard()) {
    if (up.has_ack()) CHECK(FromProto(up.ack().state_token()) == token);
  }
}

TEST_CASE("a silent sender is dropped and connected again", "[sync]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  receiver.Target();
  REQUIRE(sender.Heard().size() == 1);
  receiver.clock.Jump(limits::kKeepaliveTimeout);
  REQUIRE(Eventually([&] { return sender.Heard().size() >= 2; }));
  CHECK(sender.Heard()[1].has_hello());
  receiver.Target();
}

TEST_CASE("an object that is inside its announcement is not fetched", "[fetch]") {
  FakeSender sender;
  sender.inline_object = std::string(limits::kInlineObjectBytesMax, 'i');
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  const auto spool = receiver.Fetch(target);
  REQUIRE(spool.ok());
  CHECK(spool->size_bytes() == limits::kInlineObjectBytesMax);
  std::vector<std::byte> buffer;
  CHECK(AsText(*spool->Read(7, 3, buffer)) == "iii");
  CHECK(receiver.sources.last(SenderIndex(0), Content::kDelta).source == "inline");
  // Only that delta: not from another base, to another version, or of another stream.
  SyncTarget other = target;
  other.version = WeightVersion(4);
  CHECK(receiver.Fetch(other)->size_bytes() == 950);
  other = target;
  other.stream.incarnation += 1;
  CHECK(receiver.Fetch(other)->size_bytes() == 950);
  CHECK(receiver.Fetch(target, WeightVersion(3))->size_bytes() == 950);
  CHECK(receiver.sources.last(SenderIndex(0), Content::kDelta).source == "grpc");
  MutexLock lock(sender.script);
  CHECK(sender.offsets.size() == 3);
}

TEST_CASE("an object too large for an announcement is fetched", "[fetch]") {
  FakeSender sender;
  sender.inline_object = std::string(limits::kInlineObjectBytesMax + 1, 'i');
  Receiver receiver(sender.address());
  receiver.links.Start();
  CHECK(receiver.Fetch(receiver.Target())->size_bytes() == 950);
}

TEST_CASE("a broken transfer continues where it stopped", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  {
    MutexLock lock(sender.script);
    sender.chunks_before_cut = 4;
  }
  const auto spool = receiver.Fetch(target);
  REQUIRE(spool.ok());
  CHECK(spool->size_bytes() == 950);
  {
    MutexLock lock(sender.script);
    CHECK(sender.offsets == std::vector<uint64_t>{0, 400, 800});
  }
}

TEST_CASE("a transfer without progress is given up after the maximum of attempts", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  {
    MutexLock lock(sender.script);
    sender.chunks_before_cut = 0;
  }
  CHECK(absl::IsUnavailable(receiver.Fetch(target).status()));
  {
    MutexLock lock(sender.script);
    CHECK(sender.offsets.size() == static_cast<size_t>(limits::kFetchAttemptsMax));
  }
}

TEST_CASE("a delta that the sender does not retain is requested only once", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  {
    MutexLock lock(sender.script);
    sender.object = "";
  }
  {
    MutexLock lock(sender.script);
    sender.fetch_end = {grpc::StatusCode::ABORTED, "not retained"};
  }
  CHECK(absl::IsAborted(receiver.Fetch(target).status()));
  {
    MutexLock lock(sender.script);
    CHECK(sender.offsets.size() == 1);
  }
}

TEST_CASE("chunks that are not contiguous are refused", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  {
    MutexLock lock(sender.script);
    sender.offset_lie = 1;
  }
  CHECK(absl::IsDataLoss(receiver.Fetch(target).status()));
}

TEST_CASE("a broken transfer of full tensors continues with the unfinished slice", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1)};
  {
    MutexLock lock(sender.script);
    sender.frames_before_cut = 3;  // both blocks of slice 0, one of slice 1
  }
  std::vector<Digest> digests;  // of zeros
  for (const RankLayout::SliceEntry& slice : sender.layout->slices()) {
    digests.push_back(DigestBytes(std::vector<std::byte>(slice.size_bytes()), slice.first_word));
  }
  const auto full = receiver.sources.Full(
      {target, TrainerRank(0)}, {.layout = *sender.layout, .slices = slices, .expected = digests},
      {.folder = "/tmp", .memory_bytes_max = 1 << 20, .size_bytes_max = 1 << 24});
  REQUIRE(full.ok());
  REQUIRE(full->frames.size() == 2);  // of raw blocks, whatever the sender's frames were
  CHECK(full->frames[1].slice == RankSlice(1));
  CHECK(full->frames[1].entry.first_block == 0);
  CHECK(full->frames[1].entry.block_count == 2);
  {
    MutexLock lock(sender.script);
    CHECK(sender.full_requests == std::vector<std::vector<uint32_t>>{{0, 1}, {1}});
  }
}

TEST_CASE("cancelling ends current and later transfers at once", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  receiver.links.CancelFetches();
  CHECK(absl::IsCancelled(receiver.Fetch(target).status()));
}

}  // namespace dws
