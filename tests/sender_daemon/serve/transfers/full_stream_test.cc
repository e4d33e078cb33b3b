// Full tensors of one version over a real connection, while the snapshot moves on.
#include "sender_daemon/serve/transfers/full_stream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "proto/sync.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr uint32_t kPieceBlocks = 8;  // of BF16, in kFrameBytesMax

// The first slice has several pieces, of which the last one is short.
RankLayout LargeLayout() {
  return MakeLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {60 * 65'536 + 99}}},
                     {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}}});
}

// Answers every FetchFull with the order that the case has set.
class Sender final
    : public v1::SyncService::WithRawCallbackMethod_FetchFull<v1::SyncService::Service> {
 public:
  explicit Sender(DeltaLogLimits limits = kNoLimits) : state(MakeState(LargeLayout(), limits)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    // So that unread bytes stay with the sender.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub = v1::SyncService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
  }
  ~Sender() override {
    server_->Shutdown(std::chrono::system_clock::now());
    executor.Stop();
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchFull(grpc::CallbackServerContext*,
                                                        const grpc::ByteBuffer*) override {
    ++transfers;
    auto* const stream = new FullStream(executor, metrics, egress, transfers);
    stream->Send(order);
    return stream;
  }

  void Publish(const Weights& weights, FullCause full = FullCause::kNone) {
    Capture capture(*state->snapshot, pool, WeightVersion(++version), DeltaProfile::kFast, full);
    WeightsSource source(state->layout(), weights);
    DWS_CHECK(capture.Blocks(AllBlocks(state->layout()), source).ok());
    auto captured = capture.Finish();
    DWS_CHECK(captured.ok());
    state->log->Append(Seal({.state = state, .captured = *std::move(captured)}));
  }
  void Order(uint64_t of, std::vector<BlockRange> ranges) {
    order = {.state = state, .version = WeightVersion(of), .ranges = std::move(ranges)};
  }
  // Bytes that were handed to gRPC, as /metrics shows them.
  uint64_t Served(const std::string& kind) const {
    const std::string text = metrics.registry().Text();
    const std::string series = "kind=\"" + kind + "\"} ";
    const size_t at = text.find(series, text.find("\ndws_sender_served_bytes_total{"));
    REQUIRE(at != std::string::npos);
    return static_cast<uint64_t>(std::stod(text.substr(at + series.size())));
  }

  const RankStatePtr state;
  ThreadPool pool{1};
  uint64_t version = 0;
  FullOrder order;
  RealClock clock;
  EgressLimit egress{0, clock};
  SenderMetrics metrics{"job", 0};
  Executor executor{1, 16};
  std::atomic<size_t> transfers{0};
  std::unique_ptr<v1::SyncService::Stub> stub;

 private:
  std::unique_ptr<grpc::Server> server_;
};

// The client's side: what came last for each block.
struct Call {
  explicit Call(Sender& to)
      : sender(to),
        reader(to.stub->FetchFull(&context, v1::FetchFullRequest())),
        weights(SnapshotWeights(*to.state)),
        times(to.state->layout().block_count()) {
    for (auto& slice : weights) std::fill(slice.begin(), slice.end(), std::byte{0});
  }

  // One message; false at the end.
  bool Read() {
    v1::FullFrame frame;
    if (!reader->Read(&frame)) return false;
    const RankLayout& layout = sender.state->layout();
    const BlockRange range{.slice = RankSlice(frame.rank_slice()),
                           .first_block = frame.entry().first_block(),
                           .block_count = frame.entry().block_count()};
    REQUIRE(IsInside(layout, range));
    REQUIRE(frame.data().size() <= limits::kFrameBytesMax);
    for (uint32_t i = 0; i < range.block_count; ++i) {
      ++times[layout.slice(range.slice).first_block + range.first_block + i];
    }
    ranges.push_back(range);
    REQUIRE(frame.data().size() == SizeBytes(layout, range));
    std::memcpy(weights[range.slice.value()].data() + FirstByte(layout, range), frame.data().data(),
                frame.data().size());
    return true;
  }
  grpc::Status ReadAll() {
    while (Read()) continue;
    const grpc::Status status = reader->Finish();
    CHECK(Eventually([&] { return sender.transfers == 0; }));
    return status;
  }
  bool Has(const Weights& all) const { return weights == all; }  // nothing prints megabytes

  Sender& sender;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::FullFrame>> reader;
  Weights weights;
  std::vector<uint32_t> times;  // that a block came, by rank block number
  std::vector<BlockRange> ranges;
};

// Versions of a trainer; of version 1 everything is asked for.
struct Case {
  Sender sender;
  std::mt19937_64 random{Catch::rngSeed()};
  Weights first = RandomWeights(sender.state->layout(), random);
  Weights now = first;

  explicit Case(DeltaLogLimits limits = kNoLimits) : sender(limits) {
    sender.Publish(first);
    sender.Order(1, WholeSlices(sender.state->layout()));
  }
  // Another byte in one block of the first slice, which is published.
  void Change(uint32_t block) {
    now[0][size_t{block} * limits::kBlockElements * 2 + 5] ^= std::byte{1};
  }
};

TEST_CASE("what has not changed is sent from the snapshot itself, in order", "[full_stream]") {
  Case with;
  const uint64_t all = with.sender.state->layout().size_bytes();
  SECTION("all of it") {
    Call call(with.sender);
    REQUIRE(call.ReadAll().ok());
    CHECK(call.Has(with.first));
    CHECK(call.times == std::vector<uint32_t>(call.times.size(), 1));
    CHECK(call.ranges.front() == BlockRange{RankSlice(0), 0, kPieceBlocks});
    CHECK(call.ranges.back().slice == RankSlice(1));
    CHECK(with.sender.Served("full") == all);
  }
  SECTION("some blocks") {
    const std::vector<BlockRange> wanted = {{RankSlice(0), 3, 2}, {RankSlice(0), 60, 1}};
    with.sender.Order(1, wanted);
    Call call(with.sender);
    REQUIRE(call.ReadAll().ok());
    CHECK(call.ranges == wanted);
    CHECK(with.sender.Served("full") == 2 * limits::kBlockElements * 2 + 99 * 2);
  }
  SECTION("nothing") {
    with.sender.Order(1, {});
    Call call(with.sender);
    REQUIRE(call.ReadAll().ok());
    CHECK(call.ranges.empty());
  }
  CHECK(with.sender.Served("full_copied") == 0);
}

TEST_CASE("what had changed before comes last, from a copy of the version", "[full_stream]") {
  Case with;
  with.Change(20);
  with.sender.Publish(with.now);
  with.Change(20);
  with.Change(60);
  with.sender.Publish(with.now);
  Call call(with.sender);
  REQUIRE(call.ReadAll().ok());
  CHECK(call.Has(with.first));
  CHECK(call.times == std::vector<uint32_t>(call.times.size(), 1));
  // The pieces that blocks 20 and 60 are in.
  const uint64_t copied = (kPieceBlocks + 4) * limits::kBlockElements * 2 + 99 * 2;
  CHECK(with.sender.Served("full_copied") == copied);
  CHECK(with.sender.Served("full") == with.sender.state->layout().size_bytes() - copied);
  CHECK(std::ranges::is_partitioned(call.ranges, [](const BlockRange& range) {
    const uint32_t piece = range.first_block / kPieceBlocks;
    return range.slice != RankSlice(0) || (piece != 2 && piece != 7);
  }));
  CHECK(call.ranges.back().slice == RankSlice(0));
}

TEST_CASE("a piece that changes while it is lent is sent again, as it was", "[full_stream]") {
  const FullCause cause = GENERATE(FullCause::kNone, FullCause::kAsked);
  const bool passed_over = GENERATE(false, true);
  Case with;
  if (passed_over) {  // the first piece is to be copied, after all others
    with.Change(4);
    with.sender.Publish(with.now);
  }
  Call call(with.sender);
  REQUIRE(call.Read());
  // The next piece is lent, and cannot be sent: nobody reads.
  REQUIRE(Eventually([&] { return with.sender.Served("full") > limits::kFrameBytesMax; }));
  // Everything changes. The captures end, although gRPC holds the memory.
  Perturb(with.now, 0.5, with.random);
  with.sender.Publish(with.now, cause);
  if (cause == FullCause::kNone) {
    Perturb(with.now, 0.1, with.random);
    with.sender.Publish(with.now);
  }
  REQUIRE(call.ReadAll().ok());
  CHECK(call.Has(with.first));
  const auto again = std::count(call.times.begin(), call.times.end(), 2U);
  CHECK(again >= kPieceBlocks);
  CHECK(again + std::count(call.times.begin(), call.times.end(), 1U) ==
        static_cast<int64_t>(call.times.size()));
  CHECK(with.sender.Served("full_copied") > 0);
}

TEST_CASE("a receiver that hangs up gives back what was lent", "[full_stream]") {
  Case with;
  const long before = with.sender.state->snapshot.use_count();
  {
    Call call(with.sender);
    REQUIRE(call.Read());
    REQUIRE(Eventually([&] { return with.sender.Served("full") > limits::kFrameBytesMax; }));
    CHECK(with.sender.state->snapshot.use_count() > before);
    call.context.TryCancel();
  }
  CHECK(Eventually([&] { return with.sender.transfers == 0; }));
  CHECK(Eventually([&] { return with.sender.state->snapshot.use_count() == before; }));
}

TEST_CASE("a version that is out of reach is aborted", "[full_stream]") {
  Case with({.bytes_max = 1, .versions_max = 1});
  for (int i = 0; i < 3; ++i) {
    with.Change(20);
    with.sender.Publish(with.now);
  }
  Call call(with.sender);
  CHECK(call.ReadAll().error_code() == grpc::StatusCode::ABORTED);
  CHECK(call.times[0] == 1);  // what had not changed has come
  CHECK(call.times[20] == 0);
}

TEST_CASE("a sender without room for copies sheds the transfer", "[full_stream]") {
  Case with;
  with.Change(20);
  with.sender.Publish(with.now);
  with.sender.executor.Stop();
  Call call(with.sender);
  const grpc::Status status = call.ReadAll();
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(status.error_message() == "the sender serves too many transfers; try again");
}

}  // namespace
}  // namespace dws
