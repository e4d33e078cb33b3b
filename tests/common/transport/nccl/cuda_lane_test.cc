#include "common/transport/nccl/cuda_lane.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "common/transport/nccl/broadcast_channel.h"

namespace dws::nccl {
namespace {

const std::vector<std::string> kTwo = {"GPU-aa", "GPU-bb"};

const RealClock kClock;

}  // namespace

TEST_CASE("a device is chosen by UUID or number or because it is the only one", "[broadcast]") {
  CHECK(*ChooseDevice("", {"GPU-aa"}) == 0);
  CHECK(*ChooseDevice("1", kTwo) == 1);
  CHECK(*ChooseDevice("GPU-bb", kTwo) == 1);
  CHECK(absl::IsInvalidArgument(ChooseDevice("", kTwo).status()));
  for (const char* const none : {"2", "GPU-cc", "-1", "1x", "99999999999999999999999"}) {
    const Status status = ChooseDevice(none, kTwo).status();
    CHECK(absl::IsNotFound(status));
    CHECK(Message(status).find("GPU-aa, GPU-bb") != std::string::npos);
  }
}

TEST_CASE("a broadcast works with memory that only the device's driver can access", "[broadcast]") {
  constexpr uint32_t kRanks = 3;
  constexpr uint32_t kPiece = 1 << 16;
  auto api = NcclApi::Load();
  INFO(Message(api.status()));
  REQUIRE(api.ok());
  auto lanes = OpenCudaLanes("0");
  INFO(Message(lanes.status()));
  REQUIRE(lanes.ok());
  const BroadcastChannel::Parts parts{.api = *api, .lanes = lanes->source, .clock = &kClock};
  const auto id = NcclCommunicator::NewId(**api);
  REQUIRE(id.ok());

  std::vector<std::byte> object(5 * kPiece + 77);
  for (size_t i = 0; i < object.size(); ++i) object[i] = static_cast<std::byte>(i * 31 >> 3);
  std::vector<std::vector<std::byte>> received(kRanks, std::vector<std::byte>(object.size()));
  std::vector<Status> statuses(kRanks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const BroadcastChannel::Until until{.deadline = kClock.Now() + std::chrono::seconds(30),
                                          .given_up = nullptr};
      auto channel = BroadcastChannel::Join(
          parts, {.id = *id, .place = {.rank = rank, .size = kRanks}, .piece_bytes = kPiece},
          until);
      statuses[rank] = channel.status();
      if (!channel.ok()) return;
      statuses[rank] = rank == 0 ? (*channel)->Send(object, until)
                                 : (*channel)->Receive(received[rank], object.size(), until);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    INFO(Message(status));
    CHECK(status.ok());
  }
  for (uint32_t rank = 1; rank < kRanks; ++rank) CHECK(received[rank] == object);
}

}  // namespace dws::nccl
