// A sender that lends its copies on GPUs, or says something else than it passes.
#include "common/sources/same_host/lent_copies.h"

#include <grpcpp/grpcpp.h>
#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/proto_convert/convert.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/handle_socket.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "common/transport/same_host/host_id.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr StreamId kStream{.incarnation = 3, .id_hi = 1, .id_lo = 2};
const char* const kGpu = "GPU-fa4ec0da-0000-4000-8000-000000000000";

RankLayout SmallLayout() {
  auto layout =
      RankLayout::Create({Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {1001}}),
                          Shard::Whole({.name = "b", .dtype = DType::kF32, .shape = {33}}),
                          Shard::Whole({.name = "c", .dtype = DType::kU8, .shape = {5}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

// Answers, and passes over a real handle socket, what a case asks for.
class Sender final : public v1::SyncService::Service {
 public:
  Sender() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    stub_ = v1::SyncService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                         grpc::InsecureChannelCredentials()));
    auto listening = HandleSocket::Listen({.path = folder_.File("handles")});
    REQUIRE(listening.ok());
    handles_ = *std::move(listening);
    for (const uint32_t slice : {0U, 2U}) copy.add_rank_slices(slice);
    region.set_size_bytes(4096);
    region.mutable_cuda()->set_device_uuid(kGpu);
    v1::CudaChunk& chunk = *region.mutable_cuda()->add_chunks();
    chunk.set_size_bytes(4096);
    chunk.set_posix_descriptor(true);
  }
  ~Sender() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status OpenGpuCopies(grpc::ServerContext*, const v1::OpenGpuCopiesRequest* request,
                             v1::OpenGpuCopiesReply* reply) override {
    asked.push_back(*request);
    *reply->add_copies() = copy;
    if (request->ask()) return grpc::Status::OK;
    const auto pass = [this](const std::vector<UniqueFd>&, const UniqueFd& connection) -> Status {
      v1::GpuCopyMemory memory;
      for (int i = 0; i < regions; ++i) *memory.add_regions() = region;
      const std::string text = garbage.empty() ? memory.SerializeAsString() : garbage;
      const UniqueFd file(::memfd_create("chunk", MFD_CLOEXEC));
      const std::vector<int> passed(static_cast<size_t>(descriptors), file.get());
      return SendDescriptorMessage(connection, AsBytes(text), passed);
    };
    const auto expected =
        handles_->Expect({.on_descriptors = pass, .on_hangup = [this](const Status&) { ++ended; }});
    if (!expected.ok()) return {grpc::StatusCode::INTERNAL, "no registration"};
    reply->set_loan_seconds(loan_seconds);
    if (on_reply) on_reply();
    reply->set_token(expected->token.data(), expected->token.size());
    reply->set_handle_socket(handles_->path());
    return grpc::Status::OK;
  }

  Result<LentCopies> Open(const AllowedUsers& users = AllowedUsers()) {
    return LentCopies::Open(
        *stub_, calls_, [this](const grpc::ClientContext&) { return peer; }, want_, users, clock);
  }
  Status Ask() {
    return LentCopies::Ask(
        *stub_, calls_, [this](const grpc::ClientContext&) { return peer; }, want_);
  }
  const RankLayout& layout() const { return layout_; }

  v1::GpuCopy copy;
  v1::Region region;
  int regions = 1;
  int descriptors = 1;
  std::string garbage;        // instead of the description
  Status peer;                // of the connection's check
  std::atomic<int> ended{0};  // loans
  uint32_t loan_seconds = 0;
  std::function<void()> on_reply;  // called while the receiver waits for it
  JumpingClock clock;
  std::vector<v1::OpenGpuCopiesRequest> asked;

 private:
  const RankLayout layout_ = SmallLayout();
  const CopiesWant want_{.stream = kStream, .layout = layout_, .version = WeightVersion(7)};
  TempFolder folder_;
  std::unique_ptr<HandleSocket> handles_;
  ActiveCalls calls_;
  std::unique_ptr<v1::SyncService::Stub> stub_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("a loan names its slices and their places, and ends with its owner", "[same_host]") {
  Sender sender;
  {
    const auto lent = sender.Open();
    INFO(ToString(lent.status()));
    REQUIRE(lent.ok());
    REQUIRE(lent->slices().size() == 2);
    CHECK(lent->slices()[1].slice == RankSlice(2));
    const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(2)};
    const GpuCopyPlaces places(sender.layout(), slices);
    CHECK(lent->slices()[1].offset_bytes == places.offsets[1]);
    CHECK(lent->devices() == kGpu);
    CHECK(sender.ended == 0);
  }
  CHECK(Eventually([&] { return sender.ended == 1; }));
  REQUIRE(sender.asked.size() == 1);
  CHECK(sender.asked[0].host() == HostId());
  CHECK(sender.asked[0].version() == 7);
  CHECK(*FromProto(sender.asked[0].stream()) == kStream);
  CHECK(FromProto(sender.asked[0].layout_signature()) == sender.layout().signature());
}

TEST_CASE("a loan counts until its time is over, from before the call", "[same_host]") {
  Sender sender;
  sender.loan_seconds = 120;
  SECTION("read in time") {
    const auto lent = sender.Open();
    REQUIRE(lent.ok());
    sender.clock.Jump(std::chrono::seconds(100));
    CHECK(lent->slices()[0].memory->CheckTime().ok());
    sender.clock.Jump(std::chrono::seconds(20));
    const Status late = lent->slices()[0].memory->CheckTime();
    CHECK(absl::IsDeadlineExceeded(late));
    CHECK_THAT(std::string(Message(late)), Contains(kGpu));
  }
  SECTION("the call itself takes so long") {
    sender.on_reply = [&sender] { sender.clock.Jump(std::chrono::seconds(120)); };
    const auto lent = sender.Open();
    REQUIRE(lent.ok());
    CHECK(absl::IsDeadlineExceeded(lent->slices()[0].memory->CheckTime()));
  }
  SECTION("a sender that says no time") {
    sender.loan_seconds = 0;
    const auto lent = sender.Open();
    REQUIRE(lent.ok());
    sender.clock.Jump(std::chrono::hours(24));
    CHECK(lent->slices()[0].memory->CheckTime().ok());
  }
}

TEST_CASE("a handle socket that refuses is no damage", "[same_host]") {
  Sender sender;
  sender.garbage = "error: user 7 is not allowed";
  sender.descriptors = 0;
  const auto lent = sender.Open();
  CHECK(absl::IsFailedPrecondition(lent.status()));
  CHECK_THAT(std::string(Message(lent.status())), Contains("user 7 is not allowed"));
}

TEST_CASE("to ask borrows nothing", "[same_host]") {
  Sender sender;
  CHECK(sender.Ask().ok());
  CHECK(sender.asked[0].ask());
  CHECK(sender.ended == 0);
}

TEST_CASE("copies that do not fit the layout or their memory are not borrowed", "[same_host]") {
  Sender sender;
  std::string why;
  SECTION("slices that the layout lacks") {
    sender.copy.add_rank_slices(3);
    why = "has slice 3 of 3";
  }
  SECTION("a slice twice") {
    sender.copy.add_rank_slices(2);
    why = "has slice 2 of 3, expected ascending ones";
  }
  SECTION("memory that is too small") {
    sender.region.set_size_bytes(64);
    sender.region.mutable_cuda()->mutable_chunks(0)->set_size_bytes(64);
    why = "has 64 bytes, its slices need";
  }
  SECTION("more regions than copies") {
    sender.regions = 2;
    sender.descriptors = 2;
    why = "passes 2 regions with 2 descriptors for 1 copies";
  }
  SECTION("no region") {
    sender.garbage = "\x78\x01";  // an unknown field
    sender.descriptors = 0;
    why = "0 memory regions";
  }
  SECTION("a descriptor is missing") {
    sender.descriptors = 0;
    why = "with 0 descriptors for 1 copies on GPUs, expected 1";
  }
  SECTION("chunks that do not add up") {
    sender.region.set_size_bytes(8192);
    why = "chunks of 4096 bytes in a region of 8192";
  }
  SECTION("something else than a description") {
    sender.garbage = "no";
    sender.descriptors = 0;
    why = "answers 'no', expected a description";
  }
  const auto lent = sender.Open();
  CHECK(absl::IsDataLoss(lent.status()));
  CHECK_THAT(ToString(lent.status()), Contains(why));
  CHECK(Eventually([&] { return sender.ended == 1; }));
}

TEST_CASE("copies are not borrowed over a connection that is not trusted", "[same_host]") {
  Sender sender;
  sender.peer = FailedPreconditionError("that is somebody else");
  CHECK(sender.Open().status() == sender.peer);
  CHECK(sender.Ask() == sender.peer);
}

}  // namespace
}  // namespace dws
