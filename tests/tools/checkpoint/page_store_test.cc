#include "tools/checkpoint/parts/page_store.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <vector>

namespace dws::checkpoint {
namespace {

constexpr size_t kPages = 3;
constexpr size_t kBytes = kPages * 4096;

// Whether StoreBytes of `wanted` writes to memory that holds `held`. The memory is read-only, and a
// child process dies at a write.
bool Stores(ByteSpan wanted, ByteSpan held, StorePages pages) {
  void* const at =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  const MutableByteSpan memory(static_cast<std::byte*>(at), kBytes);
  std::copy(held.begin(), held.end(), memory.begin());
  REQUIRE(::mprotect(at, kBytes, PROT_READ) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(STDERR_FILENO);  // a sanitizer would report it
    ::signal(SIGSEGV, [](int) { ::_exit(1); });
    StoreBytes(wanted, memory, pages);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(::munmap(at, kBytes) == 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace

TEST_CASE("pages that already have their bytes are stored again only on request", "[checkpoint]") {
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  CHECK_FALSE(Stores(bytes, bytes, StorePages::kThatDiffer));
  CHECK(Stores(bytes, bytes, StorePages::kAll));
  std::vector<std::byte> other = bytes;
  other.back() = std::byte{8};
  CHECK(Stores(bytes, other, StorePages::kThatDiffer));
}

TEST_CASE("all bytes are stored whatever pages they share", "[checkpoint]") {
  const auto pages = GENERATE(StorePages::kThatDiffer, StorePages::kAll);
  std::vector<std::byte> wanted(kBytes - 100);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> held(kBytes);
  std::copy(wanted.begin(), wanted.begin() + 5000, held.begin());
  StoreBytes(wanted, MutableByteSpan(held).first(wanted.size()), pages);
  CHECK(std::equal(wanted.begin(), wanted.end(), held.begin()));
  CHECK(held[wanted.size()] == std::byte{0});
}

}  // namespace dws::checkpoint
