// A sender's copy of its snapshot in GPU memory, as it is lent: when, with what, and for how long.
#include "sender_daemon/serve/gpu_loan.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <functional>
#include <future>
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
  explicit Lender(uint64_t spare_bytes = 0, GpuLoans::Options loans_options = {})
      : options{.window_bytes = kMiB, .spare_bytes = spare_bytes},
        state(MakeState(SmallLayout(), {.bytes_max = uint64_t{1} << 30, .versions_max = 10})),
        memory(std::in_place, device, state->layout()),
        source(std::in_place, device, *memory, options) {
    auto listening = HandleSocket::Listen({.path = folder.File("handles")});
    REQUIRE(listening.ok());
    handles = *std::move(listening);
    loans.emplace(*handles, loans_options);
  }

  // The trainer registers again: with the same weights, or with those of another layout.
  void RegisterAgain() {
    source.reset();
    source.emplace(device, *memory, options);
  }
  void RegisterAgain(RankLayout layout) {
    source.reset();
    state = MakeState(std::move(layout), {.bytes_max = uint64_t{1} << 30, .versions_max = 10});
    memory.emplace(device, state->layout());
    source.emplace(device, *memory, options);
  }

  void Publish(uint64_t version, const Weights& weights) { Publish(version, weights, *source); }
  void Publish(uint64_t version, const Weights& weights, WeightSource& from) {
    memory->Set(weights);
    Capture capture(*state->snapshot, pool, WeightVersion(version));
    REQUIRE(capture.Blocks(AllBlocks(state->layout()), from).ok());
    REQUIRE(capture.Finish().ok());
  }

  Status Ask(uint64_t version, v1::OpenGpuCopiesReply& reply, bool ask = false,
             const std::string& host = HostId()) {
    v1::OpenGpuCopiesRequest request;
    request.set_host(host);
    request.set_version(version);
    request.set_ask(ask);
    std::promise<Status> answered;
    loans->Answer(state, std::nullopt, request, reply,
                  [&answered](const Status& status) { answered.set_value(status); });
    return answered.get_future().get();
  }
  absl::StatusCode Answer(uint64_t version) {
    v1::OpenGpuCopiesReply reply;
    return Ask(version, reply, true).code();
  }

  ThreadPool pool{1};
  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  DeviceShardsOptions options;  // shared by all registrations
  RankStatePtr state;
  std::optional<GpuWeights> memory;
  std::optional<GpuSource> source;
  TempFolder folder;
  std::unique_ptr<HandleSocket> handles;
  std::optional<GpuLoans> loans;
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

// The rest of the test device's memory, so that there is no room for two copies: as much is to stay
// free as is free now, but for half of a loan's granule.
constexpr uint64_t kLoanBytes = 2 * kMiB;

uint64_t SizeOf(const RankLayout& layout) {
  std::vector<RankSlice> all;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) all.emplace_back(s);
  return GpuCopyPlaces(layout, all).size_bytes;
}

TEST_CASE("a receiver that hangs does not keep the next registration from its copy on the GPU",
          "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender;
  Weights weights = RandomWeights(lender.state->layout(), random);
  lender.Publish(3, weights);
  v1::OpenGpuCopiesReply reply;
  REQUIRE(lender.Ask(3, reply).ok());
  Loan hangs(reply);
  lender.options.spare_bytes = *lender.device->FreeBytes();  // no room for a second copy
  lender.RegisterAgain();
  CHECK(lender.Answer(3) == absl::StatusCode::kFailedPrecondition);
  for (uint64_t version = 4; version < 7; ++version) {
    Perturb(weights, 0.02, random);
    lender.Publish(version, weights);
    v1::OpenGpuCopiesReply again;
    REQUIRE(lender.Ask(version, again).ok());
    Loan fresh(again);
    CHECK(ReadAll(lender.state->layout(), again.copies(0), fresh, lender.device) == weights);
    // It is the same memory: what is read late is not what was lent.
    CHECK(ReadAll(lender.state->layout(), reply.copies(0), hangs, lender.device) == weights);
  }
}

// Weights that do not fit the memory of a copy of SmallLayout.
RankLayout LargeLayout() {
  return MakeLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {2900, 1001}}},
                     {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {5}}}});
}

// A trainer with larger weights takes the place of one whose copy is on loan, and the GPU is short
// until the loan ends.
struct ShortOfMemory {
  ShortOfMemory() {
    lender.Publish(3, RandomWeights(lender.state->layout(), random));
    v1::OpenGpuCopiesReply reply;
    REQUIRE(lender.Ask(3, reply).ok());
    loan.emplace(reply);
    lender.options.arena_bytes = uint64_t{256} << 10;  // lists of two or three windows
    lender.RegisterAgain(LargeLayout());
    weights = RandomWeights(lender.state->layout(), random);
    lender.options.spare_bytes = ~uint64_t{0};  // to see what is free beside the rest
    lender.RegisterAgain();
    lender.Publish(1, weights);
    free = *lender.device->FreeBytes();
    lender.options.spare_bytes = free + kLoanBytes / 2 - SizeOf(lender.state->layout());
    lender.RegisterAgain();
  }
  void EndLoan() {
    const uint64_t before = *lender.device->FreeBytes();
    loan.reset();
    REQUIRE(Eventually([&] { return *lender.device->FreeBytes() > before; }));
  }
  void CheckCopy(uint64_t version) {
    v1::OpenGpuCopiesReply reply;
    REQUIRE(lender.Ask(version, reply).ok());
    Loan lent(reply);
    CHECK(ReadAll(lender.state->layout(), reply.copies(0), lent, lender.device) == weights);
  }

  std::mt19937_64 random{Catch::rngSeed()};
  Lender lender;
  std::optional<Loan> loan;
  Weights weights;
  uint64_t free = 0;
};

TEST_CASE("once a loan has ended, the next version is compared with a copy on the GPU again",
          "[gpu]") {
  ShortOfMemory with;
  Lender& lender = with.lender;
  for (uint64_t version = 2; version < 4; ++version) {
    Perturb(with.weights, 0.02, with.random);
    lender.Publish(version, with.weights);
    CHECK(lender.Answer(version) == absl::StatusCode::kFailedPrecondition);
  }
  with.EndLoan();
  for (uint64_t version = 4; version < 7; ++version) {
    Perturb(with.weights, 0.02, with.random);
    lender.Publish(version, with.weights);
    with.CheckCopy(version);
  }
}

TEST_CASE("a loan that ends while windows are compared changes nothing before the next version",
          "[gpu]") {
  ShortOfMemory with;
  Lender& lender = with.lender;
  Perturb(with.weights, 0.06, with.random);
  Watched watched(*lender.source, [&with](int call) {
    if (call == 2) with.EndLoan();
  });
  lender.Publish(2, with.weights, watched);
  CHECK(watched.calls() > 2);
  CHECK(lender.Answer(2) == absl::StatusCode::kFailedPrecondition);
  for (uint64_t version = 3; version < 5; ++version) {
    Perturb(with.weights, 0.06, with.random);
    lender.Publish(version, with.weights);
    with.CheckCopy(version);
  }
}

TEST_CASE("a sender lends a limited number of copies at a time", "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  Lender lender(0, {.loans_max = 2});
  lender.Publish(3, RandomWeights(lender.state->layout(), random));
  v1::OpenGpuCopiesReply first;
  v1::OpenGpuCopiesReply second;
  REQUIRE(lender.Ask(3, first).ok());
  CHECK(first.loan_seconds() == kGpuLoanTime.count());
  REQUIRE(lender.Ask(3, second).ok());
  std::optional<Loan> loan(first);
  const Loan other(second);
  v1::OpenGpuCopiesReply third;
  const Status refused = lender.Ask(3, third);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(Message(refused) ==
        "2 loans of copies on GPUs are open already, the limit of a sender is 2");
  CHECK(lender.Answer(3) == absl::StatusCode::kOk);  // it is not the copy that is missing
  loan.reset();
  CHECK(Eventually([&] {
    v1::OpenGpuCopiesReply again;
    return lender.Ask(3, again).ok();
  }));
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
