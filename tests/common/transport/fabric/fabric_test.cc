// Both ends in one process, with the real libfabric; one case needs two.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/transport/fabric/fabric_loan.h"
#include "common/transport/fabric/fabric_reader.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;

constexpr size_t kPiece = size_t{1} << 20;

// What shm left of a lender that was killed.
void RemoveShm(const RemoteRegion& region) {
  const std::string_view address(reinterpret_cast<const char*>(region.address.data()),
                                 region.address.size());
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    const std::string name = file.path().filename().string();
    const std::string unique = name.substr(0, name.find(':'));
    if (unique.starts_with("dws-") && address.find(unique) != std::string_view::npos) {
      std::filesystem::remove(file.path(), ignored);
    }
  }
}

// Null, and said, where libfabric is not installed.
FabricApiPtr Api() {
  const auto api = FabricApi::Load();
  if (api.ok()) return *api;
  WARN("skipped: " << Message(api.status()));
  return nullptr;
}

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937_64 random(Catch::rngSeed());
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

using Memory = std::shared_ptr<std::vector<std::byte>>;
Memory SharedBytes(size_t size) {
  return std::make_shared<std::vector<std::byte>>(RandomBytes(size));
}

FabricLoan::Options LoanOf(FabricProvider provider) {
  return {.provider = provider, .source = provider == FabricProvider::kTcp ? "127.0.0.1" : ""};
}

std::unique_ptr<FabricLoan> Lend(const FabricApiPtr& api, FabricProvider provider,
                                 const Memory& memory) {
  auto loan = FabricLoan::Create(api, LoanOf(provider), *memory, memory);
  INFO(ToString(loan.status()));
  REQUIRE(loan.ok());
  return *std::move(loan);
}

std::unique_ptr<FabricReader> Connect(const FabricApiPtr& api, const RemoteRegion& region,
                                      MutableByteSpan local, Duration timeout = seconds(20)) {
  auto reader = FabricReader::Connect(api, region, {.local = {local}, .timeout = timeout});
  INFO(ToString(reader.status()));
  REQUIRE(reader.ok());
  return *std::move(reader);
}

// All of `to`, with as many pieces under way as may be. Calls `arrived` after each.
Status ReadAll(
    RemoteMemory& remote, MutableByteSpan to,
    const std::function<void(size_t)>& arrived = [](size_t) {}) {
  const size_t pieces = CeilDiv(to.size(), kPiece);
  size_t begun = 0;
  for (size_t done = 0; done < pieces; ++done) {
    for (; begun < pieces && begun - done < remote.pieces_max(); ++begun) {
      const size_t offset = begun * kPiece;
      DWS_RETURN_IF_ERROR(
          remote.Start({.offset = offset,
                        .to = to.subspan(offset, std::min(kPiece, to.size() - offset)),
                        .tag = begun}));
    }
    DWS_RETURN_IF_ERROR(remote.Wait().status());
    arrived(done + 1);
  }
  return OkStatus();
}

TEST_CASE("what is lent arrives, and changes are seen", "[fabric]") {
  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  const FabricProvider provider = GENERATE(FabricProvider::kTcp, FabricProvider::kShm);
  INFO(ToString(provider));
  const Memory memory = SharedBytes(37 * kPiece + 4096 + 5);
  const auto loan = Lend(api, provider, memory);
  CHECK(loan->region().size == memory->size());
  CHECK_THAT(loan->name(), Contains(std::string(ToString(provider))));
  std::vector<std::byte> got(memory->size());
  const auto reader = Connect(api, loan->region(), got);
  REQUIRE(ReadAll(*reader, got).ok());
  CHECK(got == *memory);

  (*memory)[12'345'678] ^= std::byte{255};
  REQUIRE(ReadAll(*reader, got).ok());
  CHECK(got == *memory);
  // A second reader beside it.
  std::vector<std::byte> more(memory->size());
  const auto second = Connect(api, loan->region(), more);
  REQUIRE(ReadAll(*second, more).ok());
  CHECK(more == *memory);
}

TEST_CASE("every loan has another key, and a wrong one reads nothing", "[fabric]") {
  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  const Memory memory = SharedBytes(4 * kPiece);
  auto loan = Lend(api, FabricProvider::kTcp, memory);
  std::vector<std::byte> got(memory->size());
  RemoteRegion region = loan->region();
  SECTION("a guess") { region.key ^= 1; }
  SECTION("beyond the end") {
    region.size += 1;
    got.resize(region.size);
  }
  SECTION("of an earlier loan of the same memory") {
    const auto next = Lend(api, FabricProvider::kTcp, memory);
    CHECK(next->region().key != region.key);
    const uint64_t old = region.key;
    region = next->region();
    region.key = old;
    loan = nullptr;
    const auto reader = Connect(api, region, got);
    CHECK(absl::IsUnavailable(ReadAll(*reader, got)));
    return;
  }
  const auto reader = Connect(api, region, got);
  const Status refused = ReadAll(*reader, got);
  REQUIRE(absl::IsUnavailable(refused));
  CHECK_THAT(std::string(Message(refused)), Contains("fabric tcp"));
  // It is over, and says so again.
  CHECK(reader->Start({.offset = 0, .to = MutableByteSpan(got).first(8), .tag = 0}) == refused);
  // Others are not disturbed.
  std::vector<std::byte> right(memory->size());
  REQUIRE(ReadAll(*Connect(api, loan->region(), right), right).ok());
  CHECK(right == *memory);
}

TEST_CASE("a loan that has ended is an error, and its memory is let go", "[fabric]") {
  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  // With shm, two ends in one process crash here; the next case has two processes.
  const FabricProvider provider = FabricProvider::kTcp;
  Memory memory = SharedBytes(256 * kPiece);
  const std::weak_ptr<const std::vector<std::byte>> kept = memory;
  auto loan = Lend(api, provider, memory);
  memory = nullptr;
  CHECK_FALSE(kept.expired());
  std::vector<std::byte> got(loan->region().size);
  const RemoteRegion region = loan->region();
  SECTION("before it is read") {
    loan = nullptr;
    CHECK(kept.expired());
    auto reader = FabricReader::Connect(api, region, {.local = {got}, .timeout = seconds(3)});
    if (reader.ok()) CHECK_FALSE(ReadAll(**reader, got).ok());
  }
  SECTION("while it is read") {
    const auto reader = Connect(api, region, got, seconds(3));
    const Status ended = ReadAll(*reader, got, [&](size_t pieces) {
      if (pieces != 8) return;
      loan = nullptr;
      CHECK(kept.expired());
    });
    CHECK_FALSE(ended.ok());
    // Nothing arrives after that, so the memory may be used for something else.
    std::fill(got.begin(), got.end(), std::byte{0});
    const Memory other = SharedBytes(64 * kPiece);
    std::vector<std::byte> more(other->size());
    const auto next = Lend(api, provider, other);
    REQUIRE(ReadAll(*Connect(api, next->region(), more), more).ok());
    CHECK(std::count(got.begin(), got.end(), std::byte{0}) ==
          static_cast<std::ptrdiff_t>(got.size()));
  }
}

constexpr size_t kLentBytes = 512 * kPiece;

// The other process of the next case: lends, says on standard output where, and waits to be killed.
TEST_CASE("a lender", "[.lender]") {
  const auto provider = FindFabricProvider(::getenv("DWS_LENDER"));
  const auto api = FabricApi::Load();
  if (!api.ok()) ::_exit(2);
  const Memory memory = SharedBytes(kLentBytes);
  const auto loan = FabricLoan::Create(*api, LoanOf(*provider), *memory, memory);
  if (!loan.ok()) ::_exit(3);
  const RemoteRegion& region = (*loan)->region();
  const uint64_t head[] = {region.address_format, region.base, region.key, region.address.size()};
  if (::write(STDOUT_FILENO, head, sizeof(head)) != sizeof(head)) ::_exit(4);
  if (::write(STDOUT_FILENO, region.address.data(), head[3]) < 0) ::_exit(4);
  while (true) ::pause();
}

TEST_CASE("a lender that is killed, or hangs, is an error in time", "[fabric]") {
  // shm reads the memory of a process that is stopped.
  const auto how =
      GENERATE(std::pair(FabricProvider::kTcp, SIGKILL), std::pair(FabricProvider::kTcp, SIGSTOP),
               std::pair(FabricProvider::kShm, SIGKILL));
  const FabricProvider provider = how.first;
  const int number = how.second;
  INFO(ToString(provider) << ", signal " << number);
  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  ::setenv("DWS_LENDER", std::string(ToString(provider)).c_str(), 1);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::execl("/proc/self/exe", "lender", "[.lender]", nullptr);
    ::_exit(1);
  }
  ::close(pipe[1]);
  uint64_t head[4] = {};
  const bool lent =
      ::read(pipe[0], head, sizeof(head)) == sizeof(head) && head[3] <= kFabricAddressBytesMax;
  RemoteRegion region{.provider = provider,
                      .address_format = static_cast<uint32_t>(head[0]),
                      .address = std::vector<std::byte>(lent ? head[3] : 0),
                      .base = head[1],
                      .size = kLentBytes,
                      .key = head[2]};
  const bool whole =
      lent && ::read(pipe[0], region.address.data(), head[3]) == static_cast<ssize_t>(head[3]);
  ::close(pipe[0]);
  bool ended_child = false;
  std::vector<std::byte> got(kLentBytes);
  size_t arrived = 0;
  Status ended;
  const auto begin = std::chrono::steady_clock::now();
  if (whole) {
    const auto reader = FabricReader::Connect(api, region, {.local = {got}, .timeout = seconds(3)});
    ended = reader.ok() ? ReadAll(**reader, got,
                                  [&](size_t pieces) {
                                    arrived = pieces;
                                    if (pieces != 16) return;
                                    ::kill(child, number);
                                    if (number != SIGKILL) return;
                                    ::waitpid(child, nullptr, 0);  // its memory is gone now
                                    ended_child = true;
                                  })
                        : reader.status();
  }
  if (!ended_child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  if (provider == FabricProvider::kShm) RemoveShm(region);
  REQUIRE(whole);
  INFO(arrived << " pieces, " << ToString(ended));
  CHECK_FALSE(ended.ok());
  CHECK(arrived >= 16);
  CHECK(std::chrono::steady_clock::now() - begin < seconds(10));
}

TEST_CASE("nonsense is refused before libfabric sees it", "[fabric]") {
  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  const Memory memory = SharedBytes(kPiece);
  const auto loan = Lend(api, FabricProvider::kTcp, memory);
  std::vector<std::byte> got(kPiece);
  RemoteRegion region = loan->region();
  SECTION("no address") { region.address.clear(); }
  SECTION("a long address") { region.address.resize(kFabricAddressBytesMax + 1); }
  SECTION("a region that wraps around") { region.base = ~uint64_t{0} - 10; }
  const auto reader = FabricReader::Connect(api, region, {.local = {got}, .timeout = seconds(1)});
  CHECK(absl::IsInvalidArgument(reader.status()));
}

TEST_CASE("a host without the library or an adapter says so", "[fabric]") {
  const auto none = FabricApi::Load("libdws-no-such-fabric.so.1");
  REQUIRE(absl::IsUnavailable(none.status()));
  CHECK_THAT(std::string(Message(none.status())), Contains("package libfabric1"));
  const auto other = FabricApi::Load("libc.so.6");
  REQUIRE(absl::IsUnavailable(other.status()));
  CHECK_THAT(std::string(Message(other.status())), Contains("@FABRIC_1"));

  const FabricApiPtr api = Api();
  if (api == nullptr) return;
  CHECK(api->version() >= "1.11");
  const Memory memory = SharedBytes(kPiece);
  const auto elsewhere = FabricLoan::Create(
      api, {.provider = FabricProvider::kTcp, .source = "198.51.100.7"}, *memory, memory);
  REQUIRE(absl::IsUnavailable(elsewhere.status()));
  CHECK_THAT(std::string(Message(elsewhere.status())), Contains("198.51.100.7"));
}

}  // namespace
}  // namespace dws
