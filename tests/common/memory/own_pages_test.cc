#include "common/memory/own_pages.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace dws {
namespace {

constexpr size_t kSize = 3 * kHugePageBytes;

TEST_CASE("pages of the system are zero and begin at a huge page", "[memory]") {
  const OwnPages pages = AllocateOwnPages(kSize - 5);
  CHECK(reinterpret_cast<uintptr_t>(pages.get()) % kHugePageBytes == 0);
  CHECK(pages.get_deleter().size == kSize);
  for (size_t i = 0; i < kSize; i += 4096) REQUIRE(pages[i] == std::byte{0});
}

TEST_CASE("released pages are spare for whoever needs as many", "[memory]") {
  const auto spare = std::make_shared<SparePages>();
  OwnPages first = spare->Allocate(kSize);
  std::byte* const at = first.get();
  CHECK(spare->size_bytes() == 0);
  std::memset(at, 7, kSize);
  first = nullptr;
  CHECK(spare->size_bytes() == kSize);

  const OwnPages again = spare->Allocate(kSize - 1);
  CHECK(again.get() == at);
  CHECK(spare->size_bytes() == 0);
  const OwnPages other = spare->Allocate(kSize);
  CHECK(other.get() != at);
}

TEST_CASE("spare pages that do not fit make room", "[memory]") {
  const auto spare = std::make_shared<SparePages>();
  for (std::vector<OwnPages> many; many.size() < 4;) many.push_back(spare->Allocate(kSize));
  CHECK(spare->size_bytes() == 4 * kSize);
  const OwnPages larger = spare->Allocate(2 * kSize - 1);
  CHECK(spare->size_bytes() == 2 * kSize);
  // Little is added up.
  for (int i = 0; i < 3; ++i) spare->MakeRoom(SparePages::kSlackBytes / 4);
  CHECK(spare->size_bytes() == 2 * kSize);
  spare->MakeRoom(SparePages::kSlackBytes / 4);
  CHECK(spare->size_bytes() == kSize);
  spare->Clear();
  CHECK(spare->size_bytes() == 0);
}

TEST_CASE("pages outlive whoever gave them", "[memory]") {
  auto spare = std::make_shared<SparePages>();
  const std::weak_ptr<SparePages> seen = spare;
  {
    const OwnPages pages = spare->Allocate(1);
    spare = nullptr;
    pages[0] = std::byte{1};
    CHECK_FALSE(seen.expired());
  }
  CHECK(seen.expired());
}

TEST_CASE("threads do not get the same spare pages", "[memory]") {
  const auto spare = std::make_shared<SparePages>();
  constexpr int kThreads = 4;
  std::vector<uint64_t> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 300; ++round) {
        const OwnPages pages = spare->Allocate(kHugePageBytes);
        std::memset(pages.get(), t, 64);
        std::this_thread::yield();
        for (int i = 0; i < 64; ++i) wrong[t] += pages[i] != std::byte{static_cast<uint8_t>(t)};
        if (round % 50 == 0) spare->MakeRoom(kHugePageBytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<uint64_t>(kThreads));
  CHECK(spare->size_bytes() <= kThreads * kHugePageBytes);
}

}  // namespace
}  // namespace dws
