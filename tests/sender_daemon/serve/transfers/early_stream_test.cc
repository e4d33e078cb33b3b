// Deltas over a real connection, from the service itself, while their versions are captured.
#include "sender_daemon/serve/transfers/early_stream.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/delta/objects/object.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "proto/sync.grpc.pb.h"
#include "sender_daemon/serve/sync_service.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// A sender whose trainer is the case: it has published version 1.
class Sender {
 public:
  explicit Sender(DeltaLogLimits limits = kNoLimits) : state(MakeState(MixedLayout(), limits)) {
    char folder[] = "/tmp/dws-early-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    folder_ = folder;
    auto handles = HandleSocket::Listen({.path = folder_ + "/handles"});
    REQUIRE(handles.ok());
    handles_ = *std::move(handles);
    loans_.emplace(*handles_);
    service_ = std::make_unique<SyncServiceImpl>(
        SyncStream::Parts{
            .hub = hub, .metrics = metrics_, .recheck = recheck_, .refine = [](RefineRequest) {}},
        *handles_, *loans_, fabric_, egress_, executor, executor, full_transfers_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    stub = v1::SyncService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                        grpc::InsecureChannelCredentials()));
    PublishAll(state, pool, 1, weights);
    hub.Welcome(state);
  }
  ~Sender() {
    hub.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    executor.Stop();
    std::filesystem::remove_all(folder_);
  }

  // All that was posted before has run.
  void Settle() {
    std::promise<void> done;
    REQUIRE(executor.Post([&done] { done.set_value(); }));
    done.get_future().wait();
  }

  void Change() {
    Update(state->layout(), weights, random);
    for (const size_t slice : {1, 2}) {  // two of dense blocks
      for (std::byte& byte : weights[slice]) byte = static_cast<std::byte>(random());
    }
    Perturb(weights[3], 0.01, random);
  }
  void Begin(uint64_t version, DeltaProfile profile = DeltaProfile::kFast) {
    capture = std::make_unique<Capture>(*state->snapshot, pool, WeightVersion(version), profile,
                                        FullCause::kNone, [this] { hub.Replacing(); });
  }
  // The trainer hands over one slice.
  void Put(uint32_t slice) {
    std::vector<BlockRef> refs = AllBlocks(state->layout());
    std::erase_if(refs, [&](const BlockRef& ref) { return ref.slice != RankSlice(slice); });
    WeightsSource source(state->layout(), weights);
    DWS_CHECK(capture->Blocks(refs, source).ok());
  }
  void GiveUp() {
    capture = nullptr;
    hub.Replacing();
  }
  RetainedVersionPtr Publish() {
    auto captured = capture->Finish();
    DWS_CHECK(captured.ok());
    capture = nullptr;
    const std::shared_ptr<OpenDelta> open = captured->open_delta;
    captured->DropFramed(state->layout());
    RetainedVersionPtr sealed = Seal({.state = state, .captured = *std::move(captured)});
    state->log->Append(sealed);
    if (open != nullptr) open->Publish();
    hub.Announce();
    return sealed;
  }
  // Asks for version 2, from version 1.
  v1::FetchRequest Request(DeltaProfile profile = DeltaProfile::kFast) const {
    v1::FetchRequest request;
    *request.mutable_stream() = ToProto(state->stream);
    *request.mutable_layout_signature() = ToProto(state->layout().signature());
    request.set_base_version(1);
    request.set_version(2);
    request.set_class_split(profile == DeltaProfile::kWan);
    request.set_dense_raw(profile == DeltaProfile::kDirect);
    request.set_early(true);
    return request;
  }

  std::mt19937_64 random{Catch::rngSeed()};
  const RankStatePtr state;
  Weights weights = ManyMagnitudes(state->layout(), random);
  ThreadPool pool{1};
  RealClock clock;
  ReceiverHub hub{clock, "job"};
  Executor executor{1, 16};
  std::unique_ptr<Capture> capture;
  std::unique_ptr<v1::SyncService::Stub> stub;

 private:
  std::string folder_;
  std::unique_ptr<HandleSocket> handles_;
  std::optional<GpuLoans> loans_;
  SenderMetrics metrics_{"job", 0};
  SnapshotRecheck recheck_{[] {}};
  FabricHost fabric_{{}, clock};
  EgressLimit egress_{0, clock};
  std::atomic<size_t> full_transfers_{0};
  std::unique_ptr<SyncServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
};

// The receiver's side of one fetch.
struct Fetch {
  struct Frame {
    FrameEntry entry;
    std::string data;
    std::string class_table;
  };

  Fetch(Sender& from, const v1::FetchRequest& request)
      : reader(from.stub->Fetch(&context, request)) {}

  // One message; false at the end.
  bool Read() {
    v1::FetchChunk chunk;
    if (!reader->Read(&chunk)) return false;
    waits.push_back(chunk.waited());
    REQUIRE(chunk.data().size() <= limits::kFetchChunkBytesMax);
    if (chunk.frames().empty()) {
      REQUIRE(chunk.offset() == start.size());
      start += chunk.data();
      REQUIRE(start.size() <= chunk.object_bytes());
      start_bytes = chunk.object_bytes();
      return true;
    }
    CHECK(start.empty());  // comes after all frames
    CHECK(chunk.object_bytes() == 0);
    size_t offset = 0;
    for (const v1::EarlyFrame& frame : chunk.frames()) {
      const FrameEntry entry = FromProto(frame.entry());
      REQUIRE(entry.size_bytes <= chunk.data().size() - offset);
      frames[frame.rank_slice()].push_back({.entry = entry,
                                            .data = chunk.data().substr(offset, entry.size_bytes),
                                            .class_table = frame.class_table()});
      offset += entry.size_bytes;
    }
    CHECK(offset == chunk.data().size());
    return true;
  }
  grpc::Status ReadAll() {
    while (Read()) continue;
    return reader->Finish();
  }
  std::set<uint32_t> Slices() const {
    std::set<uint32_t> slices;
    for (const auto& [slice, of] : frames) slices.insert(slice);
    return slices;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::FetchChunk>> reader;
  std::map<uint32_t, std::vector<Frame>> frames;  // by rank slice
  std::vector<bool> waits;                        // by message
  std::string start;                              // of the object
  uint64_t start_bytes = 0;
};

// Checks that the fetched bytes are `object`, or its slices that `only` selects.
void CheckFetched(const Fetch& fetch, ByteSpan object, const RankLayout& layout,
                  const SliceSelection& only = std::nullopt) {
  REQUIRE(fetch.start.size() == fetch.start_bytes);
  CHECK(std::ranges::equal(AsBytes(fetch.start), object.first(fetch.start.size())));
  const ObjectHeader header = *ParseObjectHeader(AsBytes(fetch.start));
  CHECK(fetch.start.size() + header.frames_bytes == object.size());
  const DeltaManifest manifest = *ParseObjectManifest(AsBytes(fetch.start), layout);
  size_t slices = 0;
  for (const SliceDelta& slice : manifest.slices) {
    if (!Selects(only, slice.slice)) continue;
    ++slices;
    REQUIRE(fetch.frames.contains(slice.slice.value()));
    const std::vector<Fetch::Frame>& frames = fetch.frames.at(slice.slice.value());
    REQUIRE(frames.size() == slice.frames.size());
    for (size_t f = 0; f < frames.size(); ++f) {
      FrameEntry entry = slice.frames[f];
      CHECK(std::ranges::equal(AsBytes(frames[f].data), FrameBytes(object, header, entry)));
      entry.offset = 0;
      CHECK(frames[f].entry == entry);
      CHECK(frames[f].class_table.empty() != slice.classes.has_value());
      if (slice.classes.has_value()) {
        CHECK(UnpackClassTable(AsBytes(frames[f].class_table)).value() == *slice.classes);
      }
    }
  }
  CHECK(slices == fetch.frames.size());
}

TEST_CASE("a delta is fetched while it is captured and while it is sealed", "[early_stream]") {
  const DeltaProfile encoded =
      GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  const DeltaProfile asked =
      GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  Sender sender;
  sender.Change();  // so that there are class tables
  for (const uint32_t slice : {0U, 1U, 2U, 3U}) {
    if (slice == 0) sender.Begin(2, DeltaProfile::kWan);
    sender.Put(slice);
  }
  sender.Publish();
  sender.Change();
  v1::FetchRequest request = sender.Request(asked);
  request.set_base_version(2);
  request.set_version(3);

  sender.Begin(3, encoded);
  Fetch fetch(sender, request);
  sender.Put(2);
  REQUIRE(fetch.Read());
  sender.Put(0);
  while (!fetch.frames.contains(0)) REQUIRE(fetch.Read());
  CHECK(fetch.Slices() == std::set<uint32_t>{0, 2});
  CHECK(fetch.start.empty());
  // Another one begins now, and does not wait for what is there.
  Fetch second(sender, request);
  REQUIRE(second.Read());
  CHECK_FALSE(second.waits.front());
  sender.Put(1);
  WeightsSource source(sender.state->layout(), sender.weights);
  const BlockRef part{.slice = RankSlice(3), .block = 0};  // not captured whole
  REQUIRE(sender.capture->Blocks({&part, 1}, source).ok());
  const RetainedVersionPtr sealed = sender.Publish();
  CHECK(sealed->other_object.empty() == (encoded == DeltaProfile::kFast));
  REQUIRE(fetch.ReadAll().ok());
  REQUIRE(second.ReadAll().ok());
  for (const Fetch* of : {&fetch, &second}) {
    CheckFetched(*of, sealed->object_of(asked), sender.state->layout());
    CHECK(of->Slices() == std::set<uint32_t>{0, 1, 2, 3});
  }
  // Fetches a version that is published, and then again after the next one has begun.
  for (int i = 0; i < 2; ++i) {
    Fetch late(sender, request);
    REQUIRE(late.ReadAll().ok());
    CheckFetched(late, sealed->object_of(asked), sender.state->layout());
    CHECK(std::ranges::count(late.waits, true) == 0);
    if (i == 0) sender.Begin(4);
  }
}

TEST_CASE("a frame that the sender waited for says so", "[early_stream]") {
  Sender sender;
  sender.Change();
  sender.Begin(2, DeltaProfile::kDirect);
  Fetch fetch(sender, sender.Request(DeltaProfile::kDirect));
  REQUIRE(Eventually([&] { return sender.state->log->Asked() == DeltaProfile::kDirect; }));
  sender.Settle();  // it has found nothing to send
  sender.Put(1);
  REQUIRE(fetch.Read());
  CHECK(fetch.waits == std::vector<bool>{true});
  for (const uint32_t slice : {0U, 2U, 3U}) sender.Put(slice);
  const RetainedVersionPtr sealed = sender.Publish();
  REQUIRE(fetch.ReadAll().ok());
  CheckFetched(fetch, sealed->object_of(DeltaProfile::kDirect), sender.state->layout());
}

TEST_CASE("of a delta that is captured some slices are fetched", "[early_stream]") {
  Sender sender;
  sender.Change();
  sender.Begin(2);
  v1::FetchRequest request = sender.Request();
  SliceSelection only(std::in_place);
  for (const uint32_t slice : {1U, 3U}) {
    request.mutable_only()->add_rank_slices(slice);
    only->push_back(RankSlice(slice));
  }
  Fetch fetch(sender, request);
  sender.Put(0);
  sender.Put(3);
  REQUIRE(fetch.Read());
  CHECK(fetch.Slices() == std::set<uint32_t>{3});
  sender.Put(2);
  sender.Put(1);
  const RetainedVersionPtr sealed = sender.Publish();
  REQUIRE(fetch.ReadAll().ok());
  CheckFetched(fetch, sealed->object, sender.state->layout(), only);
  CHECK(fetch.Slices() == std::set<uint32_t>{1, 3});
  // Only the start of the object.
  request.mutable_only()->clear_rank_slices();
  Fetch nothing(sender, request);
  REQUIRE(nothing.ReadAll().ok());
  CHECK(nothing.frames.empty());
  CheckFetched(nothing, sealed->object, sender.state->layout(), std::vector<RankSlice>());
}

TEST_CASE("a fetch of a delta that is given up, or stands still, is aborted", "[early_stream]") {
  Sender sender;
  sender.Change();
  sender.Begin(2);
  Fetch fetch(sender, sender.Request());
  sender.Put(1);
  REQUIRE(fetch.Read());
  SECTION("given up") {
    sender.GiveUp();
    const grpc::Status status = fetch.ReadAll();
    CHECK(status.error_code() == grpc::StatusCode::ABORTED);
    CHECK(status.error_message() == "the capture of version 2 was given up");
    Fetch late(sender, sender.Request());
    CHECK(late.ReadAll().error_code() == grpc::StatusCode::ABORTED);
  }
  SECTION("stands still") {
    const grpc::Status status = fetch.ReadAll();
    CHECK(status.error_code() == grpc::StatusCode::ABORTED);
    CHECK(status.error_message() == "the capture of version 2 has stalled");
    CHECK(sender.capture != nullptr);
  }
  CHECK(fetch.Slices() == std::set<uint32_t>{1});
}

TEST_CASE("what is published and not retained any more is aborted", "[early_stream]") {
  Sender sender({.bytes_max = 1, .versions_max = 1});
  sender.Change();
  sender.Begin(2);
  Fetch fetch(sender, sender.Request());
  sender.Put(1);
  REQUIRE(fetch.Read());
  // The log is looked at when the next version has taken this one's place.
  std::promise<void> release;
  REQUIRE(sender.executor.Post([&release] { release.get_future().wait(); }));
  sender.Publish();
  sender.Change();
  sender.Begin(3);
  sender.Put(1);
  sender.Publish();
  release.set_value();
  const grpc::Status status = fetch.ReadAll();
  CHECK(status.error_code() == grpc::StatusCode::ABORTED);
  CHECK(status.error_message() == "version 2 is no longer retained; take a newer one");
}

TEST_CASE("a receiver that hangs up while it waits is let go of", "[early_stream]") {
  Sender sender;
  sender.Change();
  sender.Begin(2);
  const long before = sender.state.use_count();
  {
    Fetch fetch(sender, sender.Request());
    sender.Put(1);
    REQUIRE(fetch.Read());
    CHECK(sender.state.use_count() > before);
    fetch.context.TryCancel();
  }
  CHECK(Eventually([&] { return sender.state.use_count() == before; }));
}

TEST_CASE("an early fetch of what is not there, or of a range, is refused", "[early_stream]") {
  Sender sender;
  sender.Change();
  sender.Begin(2);
  sender.Put(1);
  v1::FetchRequest request = sender.Request();
  grpc::StatusCode expected = grpc::StatusCode::ABORTED;
  SECTION("another base") { request.set_base_version(0); }
  SECTION("another version") { request.set_version(3); }
  SECTION("a version without a delta") {
    request.set_base_version(0);
    request.set_version(1);
  }
  SECTION("an offset") {
    request.set_offset(1);
    expected = grpc::StatusCode::INVALID_ARGUMENT;
  }
  SECTION("a length") {
    request.set_length(1);
    expected = grpc::StatusCode::INVALID_ARGUMENT;
  }
  SECTION("a slice that there is none of") {
    request.mutable_only()->add_rank_slices(4);
    expected = grpc::StatusCode::INVALID_ARGUMENT;
  }
  Fetch fetch(sender, request);
  CHECK(fetch.ReadAll().error_code() == expected);
  CHECK(fetch.frames.empty());
}

// A receiver's Sync stream.
struct Follower {
  Follower(Sender& sender, const std::string& id, bool early_deltas)
      : stream(sender.stub->Sync(&context)) {
    v1::SyncUp up;
    up.mutable_hello()->set_job_id("job");
    up.mutable_hello()->set_receiver_id(id);
    up.mutable_hello()->set_protocol_major(kProtocolMajor);
    up.mutable_hello()->set_protocol_minor(kProtocolMinor);
    up.mutable_hello()->set_early_deltas(early_deltas);
    REQUIRE(stream->Write(up));
    REQUIRE(Next().has_welcome());
    REQUIRE(Next().has_announce());
  }
  // The next message that is no keepalive.
  v1::SyncDown Next() {
    v1::SyncDown down;
    do {
      REQUIRE(stream->Read(&down));
    } while (down.has_keepalive());
    return down;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SyncUp, v1::SyncDown>> stream;
};

TEST_CASE("receivers are told of a delta once it is worth a fetch", "[early_stream]") {
  Sender sender;
  CHECK_FALSE(sender.hub.AnyEarly());
  Follower older(sender, "older", false);
  CHECK_FALSE(sender.hub.AnyEarly());
  Follower current(sender, "current", true);
  CHECK(sender.hub.AnyEarly());
  sender.Change();
  sender.Begin(2);
  sender.Put(1);  // little
  for (const uint32_t slice : {2U, 0U, 3U}) sender.Put(slice);
  const v1::SyncDown told = current.Next();
  REQUIRE(told.has_replacing());
  CHECK(told.replacing().version() == 2);
  CHECK(told.replacing().base_version() == 1);
  CHECK(told.replacing().rank_epoch() == sender.state->rank_epoch.value());
  // It would take it for a full version.
  const v1::SyncDown nothing = older.Next();
  REQUIRE(nothing.has_replacing());
  CHECK(nothing.replacing().version() == 0);
  SECTION("it is given up") {
    sender.GiveUp();
    for (Follower* const follower : {&current, &older}) {
      const v1::SyncDown down = follower->Next();
      REQUIRE(down.has_replacing());
      CHECK(down.replacing().version() == 0);
      CHECK(down.replacing().base_version() == 0);
    }
  }
  SECTION("it is published") {
    sender.Publish();
    for (Follower* const follower : {&current, &older}) {
      const v1::SyncDown down = follower->Next();  // it was said once
      REQUIRE(down.has_announce());
      CHECK(down.announce().versions(1) == 2);
    }
    sender.hub.Replacing();
    CHECK(current.Next().replacing().version() == 0);
  }
  for (Follower* const follower : {&current, &older}) follower->context.TryCancel();
}

}  // namespace
}  // namespace dws
