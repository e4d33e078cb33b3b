#include "common/memory/cuda/dense_writer.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/common/memory/cuda/device_fixture.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kElements = 3'000'000;  // several pieces
constexpr uint32_t kThreads = 4;

// A place for each thread: contiguous, or in runs with gaps. Elements are of two bytes.
struct Places {
  explicit Places(CudaDevicePtr on) : device(std::move(on)) {
    for (uint32_t i = 0; i < kThreads; ++i) {
      const uint64_t run = i % 2 == 0 ? kElements : 1001;
      const uint64_t stride = i % 2 == 0 ? run : 1007;
      auto memory = device->Allocate((kElements / run + 1) * stride * 2);
      REQUIRE(memory.ok());
      places.push_back({.base = memory->address(), .run_elements = run, .stride_elements = stride});
      memories.push_back(*std::move(memory));
    }
    auto table = device->Allocate(places.size() * sizeof(Place));
    REQUIRE(table.ok());
    WriteDevice(*device, table->address(), std::as_bytes(std::span(places)));
    memories.push_back(*std::move(table));
  }

  uint64_t table() const { return memories.back().address(); }
  // What the place has now, in order.
  std::vector<std::byte> Content(uint32_t index) const {
    const Place& place = places[index];
    const auto all = ReadDevice(*device, place.base, memories[index].size_bytes());
    std::vector<std::byte> content(kElements * 2);
    for (uint64_t e = 0; e < kElements; ++e) {
      const uint64_t at = e / place.run_elements * place.stride_elements + e % place.run_elements;
      content[e * 2] = all[at * 2];
      content[e * 2 + 1] = all[at * 2 + 1];
    }
    return content;
  }

  const CudaDevicePtr device;
  std::vector<Place> places;
  std::vector<CudaBuffer> memories;  // the last: the table of places
};

// All threads write their places at once. Returns their outcomes.
std::vector<Status> WriteAll(DenseWriter& writer, const Places& places) {
  std::vector<Status> outcomes(kThreads);
  std::vector<std::thread> threads;
  std::atomic<uint32_t> ready{0};
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto bytes = Pattern(i, kElements * 2);
      ready.fetch_add(1);
      while (ready.load() < kThreads) std::this_thread::yield();
      outcomes[i] = writer.Write(
          {.place = places.places[i], .place_index = i, .first_element = 0, .element_bytes = 2},
          bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST_CASE("threads write contiguous and strided places of a device", "[gpu]") {
  const Places places(OpenDevice());
  DenseWriter writer(places.device, places.table());
  for (int round = 0; round < 2; ++round) {
    for (const Status& outcome : WriteAll(writer, places)) CHECK(outcome.ok());
    for (uint32_t i = 0; i < kThreads; ++i) CHECK(places.Content(i) == Pattern(i, kElements * 2));
  }
}

TEST_CASE("a part of a place may begin and end anywhere", "[gpu]") {
  const Places places(OpenDevice());
  DenseWriter writer(places.device, places.table());
  std::vector<std::byte> expected = Pattern(1, kElements * 2);
  WriteAll(writer, places);
  // From a block on, with a tail that fills no word.
  const auto part = Pattern(9, 65'536 * 3 + 2);
  const uint64_t first = 65'536 * 2;
  CHECK(writer
            .Write({.place = places.places[1],
                    .place_index = 1,
                    .first_element = first,
                    .element_bytes = 2},
                   part)
            .ok());
  std::copy(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(first * 2));
  CHECK(places.Content(1) == expected);
}

TEST_CASE("threads share the memory that the device has for them", "[gpu]") {
  const Places places(OpenDevice());
  if (!IsFake(*places.device)) return;  // a real GPU cannot be told to fail
  DenseWriter writer(places.device, places.table());
  // Out of memory for all but the first.
  std::string refused;
  for (int number = 2; number < 100; ++number)
    refused += fmt::format("cuMemHostAlloc:{}:2,", number);
  const Setting setting("DWS_FAKE_CUDA_FAIL", refused);
  for (const Status& outcome : WriteAll(writer, places)) {
    INFO(ToString(outcome));
    CHECK(outcome.ok());
  }
  for (uint32_t i = 0; i < kThreads; ++i) CHECK(places.Content(i) == Pattern(i, kElements * 2));
}

TEST_CASE("without memory for a single thread a write fails and says so", "[gpu]") {
  const Places places(OpenDevice());
  if (!IsFake(*places.device)) return;
  DenseWriter writer(places.device, places.table());
  std::string refused;
  for (int number = 1; number < 100; ++number)
    refused += fmt::format("cuMemHostAlloc:{}:2,", number);
  {
    const Setting setting("DWS_FAKE_CUDA_FAIL", refused);
    for (const Status& outcome : WriteAll(writer, places)) {
      CHECK(absl::IsResourceExhausted(outcome));
      CHECK(std::string(Message(outcome)).find("page-locked") != std::string::npos);
    }
  }
  for (const Status& outcome : WriteAll(writer, places)) CHECK(outcome.ok());
}

}  // namespace
}  // namespace dws::cuda
