// How much freed memory glibc keeps, and how much it gives back when told to. Sanitizers have
// allocators of their own.
#include "common/service/program/heap_trimmer.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kGlibc = false;
#else
constexpr bool kGlibc = true;
#endif

constexpr size_t kPiece = size_t{64} << 10;
constexpr size_t kMiB = size_t{1} << 20;

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0;
  size_t resident = 0;
  statm >> size >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

using Pieces = std::vector<std::unique_ptr<char[]>>;

Pieces Take(size_t bytes) {
  Pieces pieces(bytes / kPiece);
  for (auto& piece : pieces) piece.reset(new char[kPiece]());
  return pieces;
}

}  // namespace

// glibc gives back all of a heap's end once it is larger than the limit, so the end has to stay
// below it here, in a heap that no other thread uses.
TEST_CASE("freed memory is kept for what arrives next", "[heap]") {
  if (!kGlibc) return;
  KeepFreedMemory();
  const size_t before = ResidentBytes();
  std::thread([] { Take(kKeptBytesMax * 3 / 4); }).join();
  CHECK(ResidentBytes() > before + kKeptBytesMax / 2);
}

TEST_CASE("of freed memory only so much is kept", "[heap]") {
  if (!kGlibc) return;
  KeepFreedMemory();
  const size_t before = ResidentBytes();
  std::vector<std::thread> threads;
  // More than there are heaps.
  for (int i = 0; i < 2 * kHeapsMax; ++i) {
    threads.emplace_back([] { Take(30 * kMiB); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ResidentBytes() < before + size_t{kHeapsMax} * kKeptBytesMax + 16 * kMiB);
}

TEST_CASE("free memory between blocks in use is given back", "[heap]") {
  if (!kGlibc) return;
  KeepFreedMemory();
  Pieces pieces = Take(128 * kMiB);
  const size_t before = ResidentBytes();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % 8 != 0) pieces[i].reset();
  }
  CHECK(ResidentBytes() > before - 32 * kMiB);
  const HeapTrimmer trimmer(std::chrono::milliseconds(10));
  CHECK(Eventually([&] { return ResidentBytes() <= before - 90 * kMiB; }));
}

}  // namespace dws
