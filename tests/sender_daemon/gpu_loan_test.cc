// A sender's copy of its snapshot in GPU memory, as it is lent: when, with what, and for how long.
#include "sender_daemon/serve/gpu_loan.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/cuda/ipc/lent_memory.h"
#include "common/proto_convert/region_convert.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "common/transport/same_host/host_id.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/gpu_weights.h"

namespace dws {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

RankLayout SmallLayout() {
  return MakeLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {300, 1001}}},
                     {.tensor = {.name = "b", .dtype = DType::kU8, .shape = {70'003}}},
                     {.tensor = {.name = "c", .dtype = DType::kF32, .shape = {5}}}});
}

// A trainer on a GPU, its sender's snapshot, and a handle socket.
struct Lender {
  explicit Lender(uint64_t spare_bytes = 0)
      : state(MakeState(SmallLayout(), {.bytes_max = uint64_t{1} << 30, .versions_max = 10})),
        memory(device, state->layout()),
        source(std::in_place, device, memory,
               DeviceShardsOptions{.window_bytes = kMiB, .spare_bytes = spare_bytes}) {
    auto listening = HandleSocket::Listen({.path = folder.File("handles")});
    REQUIRE(listening.ok());
    handles = *std::move(listening);
  }

  void Publish(uint64_t version, const Weights& weights) {
    memory.Set(weights);
    Capture capture(*state->snapshot, pool, WeightVersion(version));
    REQUIRE(capture.Blocks(AllBlocks(state->layout()), *source).ok());
    REQUIRE(capture.Finish().ok());
  }

  Status Ask(uint64_t version, v1::OpenGpuCopiesReply& reply, bool ask = false,
             const std::string& host = HostId()) {
    v1::OpenGpuCopiesRequest request;
    request.set_host(host);
    request.set_version(version);
    request.set_ask(ask);
    return LendGpuCopies(*state, *handles, std::nullopt, request, reply);
  }
  absl::StatusCode Answer(uint64_t version) {
    v1::OpenGpuCopiesReply reply;
    return Ask(version, reply, true).code();
  }

  ThreadPool pool{1};
  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  const RankStatePtr state;
  GpuWeights memory;
  std::optional<GpuSource> source;
  TempFolder folder;
  std::unique_ptr<HandleSocket> handles;
};

// What a receiver gets for the token.
struct Loan {
  explicit Loan(const v1::OpenGpuCopiesReply& reply) {
    auto connected = ConnectUnix(reply.handle_socket(), SOCK_SEQPACKET);
    REQUIRE(connected.ok());
    connection = std::move(connected->fd);
    const std::string payload = reply.token() + std::string(sizeof(uint32_t), '\0');
    REQUIRE(SendDescriptorMessage(connection, AsBytes(payload), {}).ok());
    std::optional<DescriptorMessage> message;
    REQUIRE(Eventually([&] {
      auto received = ReceiveDescriptorMessage(connection, 4096);
      REQUIRE(received.ok());
      message = *std::move(received);
      return message.has_value();
    }));
    v1::GpuCopyMemory memory;
    REQUIRE(
        memory.ParseFromArray(message->payload.data(), static_cast<int>(message->payload.size())));
    auto regions = FromProto(memory.regions());
    REQUIRE((regions.ok() && regions->size() == 1));
    kind = (*regions)[0].cuda->chunks[0].kind;
    lent.emplace((*regions)[0], std::move(message->descriptors));
  }
  UniqueFd connection;
  CudaChunkHandle::Kind kind = {};
  std::optional<cuda::LentMemory> lent;
};

Weights ReadAll(const RankLayout& layout, const v1::GpuCopy& copy, Loan& loan,
                const cuda::CudaDevicePtr& device) {
  std::vector<RankSlice> slices;
  for (const uint32_t slice : copy.rank_slices()) slices.emplace_back(slice);
  const GpuCopyPlaces places(layout, slices);
  CHECK(loan.lent->size_bytes() >= places.size_bytes);
  const auto address = loan.lent->AddressOn(device);
  INFO(ToString(address.status()));
  REQUIRE(address.ok());
  Weights weights(layout.slice_count());
  for (size_t i = 0; i < slices.size(); ++i) {
    weights[slices[i].value()] = cuda::ReadDevice(*device, *address + places.offsets[i],
                                                  layout.slice(slices[i]).size_bytes());
  }
  return weights;
}

TEST_CASE("a receiver on any GPU of the host reads a lent copy as the version has it", "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender;
  const Weights first = RandomWeights(lender.state->layout(), random);
  lender.Publish(3, first);
  v1::OpenGpuCopiesReply reply;
  REQUIRE(lender.Ask(3, reply).ok());
  REQUIRE(reply.copies_size() == 1);
  Loan loan(reply);
  CHECK(loan.kind == CudaChunkHandle::Kind::kDescriptor);  // containers share it
  const size_t reader = GENERATE(0, 1);
  CHECK(ReadAll(lender.state->layout(), reply.copies(0), loan, cuda::OpenDevice(reader)) == first);

  Weights second = first;
  Perturb(second, 0.02, random);
  lender.Publish(4, second);
  CHECK(ReadAll(lender.state->layout(), reply.copies(0), loan, cuda::OpenDevice(reader)) == second);
}

TEST_CASE("a copy is lent only as the version that it has, and not while it changes", "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender;
  CHECK(lender.Answer(3) == absl::StatusCode::kFailedPrecondition);  // there is none yet
  const Weights weights = RandomWeights(lender.state->layout(), random);
  lender.Publish(3, weights);
  CHECK(lender.Answer(3) == absl::StatusCode::kOk);
  CHECK(lender.Answer(2) == absl::StatusCode::kAborted);
  CHECK(lender.Answer(4) == absl::StatusCode::kAborted);
  {
    Capture given_up(*lender.state->snapshot, lender.pool, WeightVersion(4));
    REQUIRE(given_up.Blocks(AllBlocks(lender.state->layout()), *lender.source).ok());
    CHECK(lender.Answer(3) == absl::StatusCode::kAborted);
    CHECK(lender.Answer(4) == absl::StatusCode::kAborted);
  }
  CHECK(lender.Answer(3) == absl::StatusCode::kAborted);  // it has the weights of the attempt
  lender.Publish(5, weights);
  CHECK(lender.Answer(5) == absl::StatusCode::kOk);

  v1::OpenGpuCopiesReply reply;
  CHECK(absl::IsFailedPrecondition(lender.Ask(5, reply, true, "another host")));
  CHECK(absl::IsFailedPrecondition(lender.Ask(5, reply, true, "")));
}

TEST_CASE("a snapshot that is only in host memory is not lent from a GPU", "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender(~uint64_t{0});  // so much is to stay free that there is no copy
  lender.Publish(3, RandomWeights(lender.state->layout(), random));
  CHECK(lender.Answer(3) == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a loan keeps the memory when the trainer has gone, until the receiver hangs up",
          "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender;
  const Weights weights = RandomWeights(lender.state->layout(), random);
  lender.Publish(3, weights);
  const uint64_t with_copy = *lender.device->FreeBytes();
  v1::OpenGpuCopiesReply reply;
  REQUIRE(lender.Ask(3, reply).ok());
  std::optional<Loan> loan(reply);
  lender.source.reset();
  CHECK(lender.Answer(3) == absl::StatusCode::kFailedPrecondition);
  CHECK(ReadAll(lender.state->layout(), reply.copies(0), *loan, lender.device) == weights);
  const uint64_t lent = *lender.device->FreeBytes();
  loan.reset();
  CHECK(Eventually([&] { return *lender.device->FreeBytes() > lent; }));
  CHECK(*lender.device->FreeBytes() > with_copy);
}

TEST_CASE("where a device has no descriptors, the copy is lent by a legacy handle", "[gpu]") {
  const cuda::Setting none("DWS_FAKE_CUDA_DESCRIPTORS", "0");
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender;
  if (!cuda::IsFake(*lender.device)) return;
  lender.Publish(3, RandomWeights(lender.state->layout(), random));
  v1::OpenGpuCopiesReply reply;
  REQUIRE(lender.Ask(3, reply).ok());
  Loan loan(reply);
  CHECK(loan.kind == CudaChunkHandle::Kind::kLegacyIpc);
  // The driver refuses it in the process that exported it; cuda_sync_test opens it in another one.
  const auto address = loan.lent->AddressOn(lender.device);
  CHECK(absl::IsFailedPrecondition(address.status()));
  CHECK(std::string(Message(address.status())).find("PID namespace") != std::string::npos);
}

}  // namespace
}  // namespace dws
