// The connections to senders against a sender in this process that cuts, stalls and lies.
#include "receiver_daemon/transfer/sync_links.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/delta/encoder.h"
#include "common/delta/frame.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "proto/sync.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {
namespace {

constexpr StreamId kStream{.incarnation = 3, .id_hi = 1, .id_lo = 2};

std::shared_ptr<const RankLayout> OneTensor() {
  return MakeRankLayout(
      {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {150'000}, .cuts = {70'000}},
        .slice_count = 2}});
}

// Serves one Sync stream at a time and an object of letters.
class FakeSender final : public v1::SyncService::Service {
 public:
  explicit FakeSender(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~FakeSender() override { Shut(); }

  void Shut() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::vector<v1::SyncUp> Heard() {
    MutexLock lock(mutex_);
    return heard_;
  }
  bool HeardAck(v1::Ack::Stage stage, uint64_t version) {
    const std::vector<v1::SyncUp> heard = Heard();
    return std::any_of(heard.begin(), heard.end(), [&](const v1::SyncUp& up) {
      return up.has_ack() && up.ack().stage() == stage && up.ack().version() == version;
    });
  }

  grpc::Status Sync(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::SyncDown, v1::SyncUp>* stream) override {
    v1::SyncUp up;
    while (stream->Read(&up)) {
      {
        MutexLock lock(mutex_);
        heard_.push_back(up);
      }
      if (!up.has_hello()) continue;
      v1::SyncDown down;
      down.set_nonce(1);
      v1::Welcome& welcome = *down.mutable_welcome();
      *welcome.mutable_stream() = ToProto(kStream);
      welcome.set_world_size(1);
      welcome.set_rank_epoch(1);
      *welcome.mutable_layout() = ToProto(*layout);
      *welcome.mutable_layout_signature() = ToProto(layout->signature());
      welcome.set_protocol_major(protocol_major);
      if (const int left = lies.load(); left > 0) {
        lies = left - 1;
        lie(down);
        stream->Write(down);
        while (stream->Read(&up)) continue;
        return grpc::Status::OK;
      }
      stream->Write(down);
      down.Clear();
      down.set_nonce(2);
      *down.mutable_announce()->mutable_stream() = ToProto(kStream);
      down.mutable_announce()->set_rank_epoch(1);
      for (const uint64_t version : {4, 5}) down.mutable_announce()->add_versions(version);
      if (const int left = descending.load(); left > 0) {
        descending = left - 1;
        down.mutable_announce()->add_versions(3);
      }
      down.mutable_announce()->set_object_base(4);
      down.mutable_announce()->set_object(inline_object);
      stream->Write(down);
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* writer) override {
    MutexLock lock(script);
    offsets.push_back(request->offset());
    uint64_t offset = request->offset();
    for (int sent = 0; offset < object.size(); ++sent) {
      if (sent == chunks_before_cut) return {grpc::StatusCode::UNAVAILABLE, "cut"};
      v1::FetchChunk chunk;
      chunk.set_object_bytes(object.size());
      chunk.set_offset(offset + offset_lie);
      chunk.set_data(object.substr(offset, 100));
      offset += chunk.data().size();
      writer->Write(chunk);
    }
    return fetch_end;
  }

  grpc::Status FetchFull(grpc::ServerContext*, const v1::FetchFullRequest* request,
                         grpc::ServerWriter<v1::FullFrame>* writer) override {
    MutexLock lock(script);
    full_requests.emplace_back(request->rank_slices().begin(), request->rank_slices().end());
    int sent = 0;
    for (const uint32_t number : request->rank_slices()) {
      const RankLayout::SliceEntry& slice = layout->slice(RankSlice(number));
      for (uint32_t block = 0; block < slice.blocks; ++block) {
        if (sent++ == frames_before_cut) {
          frames_before_cut = -1;
          return {grpc::StatusCode::UNAVAILABLE, "cut"};
        }
        const std::vector<std::byte> zeros(BlockElements(slice.elements, block) * 2);
        const std::vector<EncodedBlock> blocks = {EncodeFullBlock(slice.dtype, zeros, false)};
        const std::vector<std::byte> frame = BuildFrame(blocks);
        v1::FullFrame message;
        message.set_rank_slice(number);
        *message.mutable_entry() = ToProto(FrameEntry{.first_block = block,
                                                      .block_count = 1,
                                                      .offset = 0,
                                                      .size_bytes = frame.size(),
                                                      .checksum = FrameChecksum(frame)});
        message.set_data(std::string(AsText(frame)));
        writer->Write(message);
      }
    }
    return grpc::Status::OK;
  }

  // In the first so many streams what `lie` makes of the welcome is all that is said.
  std::atomic<int> lies = 0;
  std::function<void(v1::SyncDown&)> lie;
  std::atomic<int> descending = 0;  // streams whose first announcement is out of order
  // Set while nobody calls.
  std::shared_ptr<const RankLayout> layout = OneTensor();
  uint32_t protocol_major = kProtocolMajor;
  std::string inline_object;  // 4 -> 5, inside the announcement
  std::string object = std::string(950, 'x');
  // What Fetch and FetchFull do, and what they were asked.
  Mutex script;
  int chunks_before_cut = -1;
  int frames_before_cut = -1;
  uint64_t offset_lie = 0;
  grpc::Status fetch_end;
  std::vector<uint64_t> offsets;
  std::vector<std::vector<uint32_t>> full_requests;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  std::vector<v1::SyncUp> heard_ GUARDED_BY(mutex_);
};

struct Receiver {
  explicit Receiver(const std::string& address)
      : subscription({address}, std::nullopt, changed, clock),
        links({.addresses = {address}, .job_id = "job", .receiver_id = "r0"}, subscription, clock) {
  }

  SyncTarget Target() {
    REQUIRE(Eventually([this] { return subscription.Target().has_value(); }));
    return *subscription.Target();
  }
  Result<Spool> Fetch(const SyncTarget& target) {
    return links.FetchObject(
        target, TrainerRank(0), WeightVersion(4),
        {.folder = "/tmp", .memory_bytes_max = 1 << 20, .size_bytes_max = 1 << 20});
  }

  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription;
  SyncLinks links;
};

}  // namespace

TEST_CASE("a receiver says who it is, hears what is offered and answers with the nonce", "[sync]") {
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

TEST_CASE("a restarted sender is found again and told what is committed", "[sync]") {
  auto sender = std::make_unique<FakeSender>();
  const int port = sender->port();
  Receiver receiver(sender->address());
  receiver.links.Start();
  receiver.Target();
  sender.reset();
  REQUIRE(Eventually([&] { return !receiver.subscription.Target().has_value(); }));
  receiver.subscription.SetLive(VersionAt{.stream = kStream, .version = WeightVersion(5)});
  FakeSender again(port);
  receiver.Target();
  // In Hello, or, when that was on its way already, as an acknowledgement after it.
  REQUIRE(Eventually([&] {
    const std::vector<v1::SyncUp> heard = again.Heard();
    return (!heard.empty() && heard[0].hello().have_version() == 5) ||
           again.HeardAck(v1::Ack::COMMITTED, 5);
  }));
}

TEST_CASE("a sender that falls silent is dropped and tried again", "[sync]") {
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

TEST_CASE("an object that came with its announcement is not fetched", "[fetch]") {
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
  // That delta alone: not from another base, not to another version, not of another stream.
  SyncTarget other = target;
  other.version = WeightVersion(4);
  CHECK(receiver.Fetch(other)->size_bytes() == 950);
  other = target;
  other.stream.incarnation += 1;
  CHECK(receiver.Fetch(other)->size_bytes() == 950);
  const auto from_another_base = receiver.links.FetchObject(
      target, TrainerRank(0), WeightVersion(3),
      {.folder = "/tmp", .memory_bytes_max = 1 << 20, .size_bytes_max = 1 << 20});
  CHECK(from_another_base->size_bytes() == 950);
  MutexLock lock(sender.script);
  CHECK(sender.offsets.size() == 3);
}

TEST_CASE("an object too large for an announcement is fetched all the same", "[fetch]") {
  FakeSender sender;
  sender.inline_object = std::string(limits::kInlineObjectBytesMax + 1, 'i');
  Receiver receiver(sender.address());
  receiver.links.Start();
  CHECK(receiver.Fetch(receiver.Target())->size_bytes() == 950);
}

TEST_CASE("a broken transfer goes on where it stopped", "[fetch]") {
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

TEST_CASE("a sender that never gets anywhere is given up", "[fetch]") {
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

TEST_CASE("a delta that is not to be had is not asked for twice", "[fetch]") {
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

TEST_CASE("chunks that do not follow each other are refused", "[fetch]") {
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

TEST_CASE("full tensors that break off go on with the slice that was not finished", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(1)};
  {
    MutexLock lock(sender.script);
    sender.frames_before_cut = 3;  // both blocks of slice 0, one of slice 1
  }
  const auto full = receiver.links.FetchFull(
      target, TrainerRank(0), *sender.layout, slices,
      {.folder = "/tmp", .memory_bytes_max = 1 << 20, .size_bytes_max = 1 << 24});
  REQUIRE(full.ok());
  REQUIRE(full->frames.size() == 4);
  CHECK(full->frames[2].slice == RankSlice(1));
  CHECK(full->frames[2].entry.first_block == 0);
  {
    MutexLock lock(sender.script);
    CHECK(sender.full_requests == std::vector<std::vector<uint32_t>>{{0, 1}, {1}});
  }
}

TEST_CASE("cancelling ends transfers at once, those to come too", "[fetch]") {
  FakeSender sender;
  Receiver receiver(sender.address());
  receiver.links.Start();
  const SyncTarget target = receiver.Target();
  receiver.links.CancelFetches();
  CHECK(absl::IsCancelled(receiver.Fetch(target).status()));
}

TEST_CASE("a sender that breaks the protocol is asked again, until it keeps to it", "[sync]") {
  const auto begin = [](v1::SyncDown& down) -> v1::Announce& {
    down.Clear();
    down.set_nonce(1);
    return *down.mutable_announce();
  };
  const std::vector<std::function<void(v1::SyncDown&)>> lies = {
      [](v1::SyncDown& down) { down.mutable_welcome()->set_trainer_rank(1); },  // of a world of one
      [](v1::SyncDown& down) { down.mutable_welcome()->clear_layout(); },
      [](v1::SyncDown& down) { down.mutable_welcome()->clear_stream(); },
      [&](v1::SyncDown& down) { begin(down); },  // of no stream
  };
  for (const auto& lie : lies) {
    FakeSender sender;
    sender.lie = lie;
    sender.lies = 3;
    Receiver receiver(sender.address());
    receiver.links.Start();
    CHECK(receiver.Target().version == WeightVersion(5));
    CHECK(sender.Heard().size() >= 4);
    CHECK(receiver.subscription.WithoutSender() == Duration::zero());
  }
}

TEST_CASE("an announcement that breaks the protocol ends its stream, and the next is begun",
          "[sync]") {
  FakeSender sender;
  sender.descending = 2;
  Receiver receiver(sender.address());
  receiver.links.Start();
  CHECK(receiver.Target().version == WeightVersion(5));
  CHECK(sender.Heard().size() == 3);
}

TEST_CASE("a message that is none at all is given up with the silence that follows", "[sync]") {
  FakeSender sender;
  sender.lies = 1;
  sender.lie = [](v1::SyncDown& down) {
    // A field that this build knows, with bytes that are no message.
    auto* const fields = down.GetReflection()->MutableUnknownFields(&down);
    down.Clear();
    fields->AddLengthDelimited(2, "\xff\xff\xff");
  };
  Receiver receiver(sender.address());
  receiver.links.Start();
  REQUIRE(Eventually([&] { return !sender.Heard().empty() && sender.lies == 0; }));
  receiver.clock.Jump(limits::kKeepaliveTimeout);
  CHECK(receiver.Target().version == WeightVersion(5));
}

TEST_CASE("a sender that was refused is looked at again, on the connection it has", "[sync]") {
  FakeSender sender;
  FakeSender twin;  // claims the same rank
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address(), twin.address()}, std::nullopt, changed, clock);
  SyncLinks links(
      {.addresses = {sender.address(), twin.address()}, .job_id = "job", .receiver_id = "r0"},
      subscription, clock);
  links.Start();
  const auto refused = [&] {
    const auto peers = subscription.Peers();
    for (uint32_t i = 0; i < 2; ++i) {
      const bool served_twice =
          peers[i].last_error.find("served by two senders") != std::string::npos;
      if (served_twice && peers[1 - i].trainer_rank.has_value()) return std::optional(i);
    }
    return std::optional<uint32_t>();
  };
  REQUIRE(Eventually([&] { return refused().has_value(); }));
  const uint32_t second = *refused();
  FakeSender& waits = second == 0 ? sender : twin;
  FakeSender& holds = second == 0 ? twin : sender;
  holds.Shut();
  REQUIRE(Eventually([&] {
    clock.Jump(std::chrono::milliseconds(100));
    const std::optional<SyncTarget> target = subscription.Target();
    return target.has_value() && target->ranks[0].sender == SenderIndex(second);
  }));
  CHECK(waits.Heard().size() == 1);
  links.Stop();
}

TEST_CASE("a refused sender whose announcement breaks the protocol loses its stream", "[sync]") {
  FakeSender sender;
  sender.descending = 1;
  StreamId newer = kStream;
  ++newer.incarnation;
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address()}, newer, changed, clock);
  SyncLinks links({.addresses = {sender.address()}, .job_id = "job", .receiver_id = "r0"},
                  subscription, clock);
  links.Start();
  REQUIRE(Eventually([&] { return sender.descending == 0; }));
  REQUIRE(Eventually([&] {
    return subscription.Peers()[0].last_error.find("an old trainer") != std::string::npos;
  }));
  subscription.Forget(std::nullopt);
  REQUIRE(Eventually([&] {
    clock.Jump(std::chrono::milliseconds(100));
    const std::optional<SyncTarget> target = subscription.Target();
    return target.has_value() && target->version == WeightVersion(5);
  }));
  CHECK(sender.Heard().size() >= 2);  // it was asked anew
  links.Stop();
}

TEST_CASE("a sender of another protocol major is refused by name", "[sync]") {
  FakeSender sender;
  sender.protocol_major = kProtocolMajor + 1;
  Receiver receiver(sender.address());
  receiver.links.Start();
  REQUIRE(Eventually([&] {
    return receiver.subscription.Peers()[0].last_error.find("upgrade the older one") !=
           std::string::npos;
  }));
  CHECK_FALSE(receiver.subscription.Target().has_value());
}

}  // namespace dws
