#include "common/transport/nccl/broadcast_channel.h"

#include <stdlib.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <thread>
#include <vector>

#include "tests/fakes/nccl/host_lane.h"

namespace dws::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using ChannelPtr = std::unique_ptr<BroadcastChannel>;

const RealClock kClock;
constexpr uint32_t kPiece = 1 << 16;

NcclApiPtr Api() {
  auto api = NcclApi::Load();
  INFO(Message(api.status()));
  REQUIRE(api.ok());
  return *std::move(api);
}

BroadcastChannel::Parts Parts() {
  return {.api = Api(), .lanes = HostLane::Source(), .clock = &kClock};
}

BroadcastChannel::Until In(Duration timeout, std::function<bool()> given_up = nullptr) {
  return {.deadline = kClock.Now() + timeout, .given_up = std::move(given_up)};
}

// Runs `act(rank)` for all ranks at the same time.
template <typename Act>
void ForRanks(uint32_t size, const Act& act) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) threads.emplace_back([&act, rank] { act(rank); });
  for (std::thread& thread : threads) thread.join();
}

// The channels of all ranks of one epoch.
std::vector<ChannelPtr> JoinAll(uint32_t size) {
  const BroadcastChannel::Parts parts = Parts();
  const auto id = NcclCommunicator::NewId(*parts.api);
  REQUIRE(id.ok());
  std::vector<ChannelPtr> channels(size);
  ForRanks(size, [&](uint32_t rank) {
    auto channel = BroadcastChannel::Join(
        parts, {.id = *id, .place = {.rank = rank, .size = size}, .piece_bytes = kPiece},
        In(seconds(30)));
    if (channel.ok()) channels[rank] = *std::move(channel);
  });
  for (const ChannelPtr& channel : channels) REQUIRE(channel != nullptr);
  return channels;
}

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Sends one object from rank 0 to the others; returns the status of each rank.
std::vector<Status> Broadcast(std::vector<ChannelPtr>& channels, const std::vector<std::byte>& sent,
                              std::vector<std::vector<std::byte>>& received, Duration timeout) {
  std::vector<Status> statuses(channels.size());
  received.assign(channels.size(), {});
  ForRanks(static_cast<uint32_t>(channels.size()), [&](uint32_t rank) {
    if (channels[rank] == nullptr) return;
    received[rank].resize(sent.size());
    statuses[rank] = rank == 0 ? channels[0]->Send(sent, In(timeout))
                               : channels[rank]->Receive(received[rank], sent.size(), In(timeout));
  });
  return statuses;
}

}  // namespace

TEST_CASE("an object of any size in pieces arrives at every rank", "[broadcast]") {
  std::vector<ChannelPtr> channels = JoinAll(4);
  const size_t size = GENERATE(1, kPiece - 1, kPiece, kPiece + 1, 5 * kPiece, 7 * kPiece + 13);
  const std::vector<std::byte> sent = RandomBytes(size);
  std::vector<std::vector<std::byte>> received;
  for (const Status& status : Broadcast(channels, sent, received, seconds(30))) CHECK(status.ok());
  for (uint32_t rank = 1; rank < 4; ++rank) CHECK(received[rank] == sent);
}

TEST_CASE("a rank that keeps nothing still takes part in a broadcast", "[broadcast]") {
  std::vector<ChannelPtr> channels = JoinAll(3);
  const std::vector<std::byte> sent = RandomBytes(3 * kPiece + 5);
  std::vector<std::byte> kept(sent.size());
  ForRanks(3, [&](uint32_t rank) {
    const Status status = rank == 0   ? channels[0]->Send(sent, In(seconds(30)))
                          : rank == 1 ? channels[1]->Receive({}, sent.size(), In(seconds(30)))
                                      : channels[2]->Receive(kept, sent.size(), In(seconds(30)));
    if (!status.ok()) std::abort();
  });
  CHECK(kept == sent);
}

TEST_CASE("if a rank does not join the others fail at their deadline and can join again",
          "[broadcast]") {
  const BroadcastChannel::Parts parts = Parts();
  const auto id = NcclCommunicator::NewId(*parts.api);
  REQUIRE(id.ok());
  const TimePoint began = kClock.Now();
  std::vector<Status> statuses(2);
  ForRanks(2, [&](uint32_t rank) {
    statuses[rank] =
        BroadcastChannel::Join(
            parts, {.id = *id, .place = {.rank = rank, .size = 3}, .piece_bytes = kPiece},
            In(milliseconds(300)))
            .status();
  });
  for (const Status& status : statuses) CHECK(absl::IsDeadlineExceeded(status));
  CHECK(kClock.Now() - began >= milliseconds(300));
  CHECK(kClock.Now() - began < seconds(20));
  JoinAll(2);
}

TEST_CASE("if a rank is lost the others fail at their deadline and continue without it",
          "[broadcast]") {
  std::vector<ChannelPtr> channels = JoinAll(3);
  // More than the connection buffers: the root cannot finish before its peer has read.
  const std::vector<std::byte> sent = RandomBytes(size_t{64} << 20);
  channels[2].reset();
  std::vector<std::vector<std::byte>> received;
  std::vector<Status> statuses = Broadcast(channels, sent, received, milliseconds(500));
  CHECK(absl::IsDeadlineExceeded(statuses[0]));
  channels.clear();

  std::vector<ChannelPtr> survivors = JoinAll(2);
  statuses = Broadcast(survivors, RandomBytes(kPiece), received, seconds(30));
  CHECK(statuses[0].ok());
  CHECK(statuses[1].ok());
}

TEST_CASE("a call that is given up ends at once", "[broadcast]") {
  std::vector<ChannelPtr> channels = JoinAll(2);
  std::atomic<bool> given_up{false};
  std::vector<std::byte> kept(kPiece);
  Status status;
  std::thread receiver([&] {
    status = channels[1]->Receive(kept, kept.size(),
                                  In(std::chrono::hours(1), [&] { return given_up.load(); }));
  });
  given_up = true;
  receiver.join();
  CHECK(absl::IsCancelled(status));
}

TEST_CASE("a library that is too old is refused and the error names the version to install",
          "[broadcast]") {
  setenv("FAKE_NCCL_VERSION", "21503", 1);
  const auto api = NcclApi::Load();
  unsetenv("FAKE_NCCL_VERSION");
  REQUIRE(absl::IsUnavailable(api.status()));
  CHECK(Message(api.status()).find("version 2.15.3, expected at least 2.18.0") !=
        std::string::npos);
}

}  // namespace dws::nccl
