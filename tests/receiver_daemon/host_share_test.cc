// Receivers of one host that share a folder, each with its own trainer, which has the same weights:
// fetches from that trainer count as fetches over the network.
#include "receiver_daemon/transfer/host/host_share.h"
#include "common/model/host_limits.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {
namespace {

constexpr uint64_t kBytesMax = uint64_t{64} << 20;

std::vector<std::shared_ptr<const RankLayout>> Layouts() {
  return {MakeRankLayout(
      {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {700'000}, .cuts = {}}},
       {.tensor = {.name = "x", .dtype = DType::kF32, .shape = {99}, .cuts = {}}}})};
}

// One receiver, and what it could fetch over the network.
struct Receiver {
  explicit Receiver(const std::string& folder, HostShare::Options options = {}) {
    for (int i = 0; i < 3; ++i) trainer.Publish(0.3);
    options.folder = folder;
    options.job_id = "job";
    auto opened = HostShare::Open(options, cancellation);
    REQUIRE(opened.ok());
    share = *std::move(opened);
    sources.emplace(std::vector<Source*>{share.get(), &trainer},
                    SourceChain::Options{.cancellation = &cancellation});
  }

  SyncTarget Target(uint64_t version) const {
    SyncTarget target = trainer.Target(version);
    target.ranks[0].state_token = StateToken(trainer.Digests(version, 0));
    return target;
  }
  Result<Spool> Fetch(uint64_t version = 2, std::function<bool()> wanted = {},
                      const SliceSelection& slices = std::nullopt) {
    return Fetch(Target(version), {.base = WeightVersion(version - 1), .slices = slices},
                 std::move(wanted));
  }
  Result<Spool> Fetch(const SyncTarget& target, const DeltaWant& want,
                      std::function<bool()> wanted = {}) {
    return sources->Object({.target = target, .rank = TrainerRank(0)}, want,
                           {.folder = "/tmp",
                            .memory_bytes_max = uint64_t{16} << 20,
                            .size_bytes_max = uint64_t{1} << 30,
                            .progress = &progress,
                            .wanted = std::move(wanted)});
  }
  // Returns whether it gets the object of that version, bit for bit.
  bool Gets(uint64_t version = 2) {
    const Result<Spool> spool = Fetch(version);
    std::vector<std::byte> buffer;
    if (!spool.ok()) return false;
    const auto bytes = spool->Read(0, spool->size_bytes(), buffer);
    const std::vector<std::byte> wanted = trainer.Object(0, version - 1, version);
    return bytes.ok() && std::equal(bytes->begin(), bytes->end(), wanted.begin(), wanted.end());
  }
  size_t fetches() const { return trainer.Log().size(); }

  FakeTrainer trainer{Layouts()};
  Cancellation cancellation;
  std::unique_ptr<HostShare> share;
  std::optional<SourceChain> sources;
  TransferProgress progress;
};

// The transfers of a receiver that wait until they may go on.
class Gate {
 public:
  explicit Gate(Receiver& receiver) {
    receiver.trainer.damage_object = [this](auto&) {
      reached_ = true;
      Eventually([this] { return open_.load(); });
    };
  }
  ~Gate() { Open(); }
  bool Reached() {
    return Eventually([this] { return reached_.load(); });
  }
  void Open() { open_ = true; }

 private:
  std::atomic<bool> reached_{false};
  std::atomic<bool> open_{false};
};

// The objects in the folder: no locks, nothing half written.
std::vector<std::filesystem::path> Objects(const std::string& folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension().empty()) found.push_back(entry.path());
  }
  return found;
}

uint64_t FolderBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

TEST_CASE("of the receivers of a host one fetches an object and all have it", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path()), c(folder.path());
  Gate gate(a);
  auto of_a = std::async(std::launch::async, [&] { return a.Gets(); });
  REQUIRE(gate.Reached());
  auto of_b = std::async(std::launch::async, [&] { return b.Gets(); });
  auto of_c = std::async(std::launch::async, [&] { return c.Gets(); });
  CHECK(of_b.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  gate.Open();
  CHECK(of_a.get());
  CHECK(of_b.get());
  CHECK(of_c.get());
  CHECK(a.fetches() == 1);
  CHECK(b.fetches() + c.fetches() == 0);
  const uint64_t size_bytes = a.trainer.Object(0, 1, 2).size();
  CHECK(a.share->totals().written_bytes == size_bytes);
  CHECK(a.share->totals().read_bytes == 0);
  CHECK(b.share->totals().read_bytes == size_bytes);
  CHECK(b.progress.done_bytes == size_bytes);
  CHECK(b.progress.total_bytes == size_bytes);
  CHECK(b.share->totals().failures == 0);
}

TEST_CASE("objects that differ in anything are fetched each", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path());
  REQUIRE(a.Gets(2));
  CHECK(b.Gets(3));
  CHECK(b.Fetch(2, {}, std::vector<RankSlice>{RankSlice(0)}).ok());
  CHECK(b.Fetch(2, {}, std::vector<RankSlice>{RankSlice(1)}).ok());
  const auto fetch = [&](const SyncTarget& target, WeightVersion base) {
    return b.Fetch(target, {.base = base, .slices = std::nullopt});
  };
  CHECK(fetch(b.Target(3), WeightVersion(1)).ok());  // another base
  SyncTarget other = b.Target(2);
  other.ranks[0].state_token->lane0 ^= 1;  // the number was used for other weights
  CHECK(fetch(other, WeightVersion(1)).ok());
  other.stream.id_lo ^= 1;
  CHECK(fetch(other, WeightVersion(1)).ok());
  CHECK(b.share->totals().read_bytes == 0);
  // Nobody knows whether it is the same.
  const size_t objects = Objects(folder.path()).size();
  other.ranks[0].state_token.reset();
  CHECK(fetch(other, WeightVersion(1)).ok());
  CHECK(Objects(folder.path()).size() == objects);
  CHECK(b.fetches() == 7);
}

TEST_CASE("where a receiver fails the next one fetches", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path()), c(folder.path());
  a.trainer.fail_objects = UnavailableError("gone");
  CHECK(absl::IsUnavailable(a.Fetch().status()));
  CHECK(b.Gets());
  CHECK(c.Gets());
  CHECK(b.fetches() == 1);
  CHECK(c.fetches() == 0);
}

TEST_CASE("where a receiver is killed while it fetches the next one fetches", "[host]") {
  const TempFolder folder;
  int pipe_fds[2];
  REQUIRE(::pipe(pipe_fds) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Receiver killed(folder.path());
    killed.trainer.damage_object = [&](auto&) {
      if (::write(pipe_fds[1], "x", 1) == 1) ::pause();
    };
    static_cast<void>(killed.Fetch());
    ::_exit(1);
  }
  char byte;
  REQUIRE(::read(pipe_fds[0], &byte, 1) == 1);
  Receiver b(folder.path()), c(folder.path());
  auto of_b = std::async(std::launch::async, [&] { return b.Gets(); });
  CHECK(of_b.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(b.fetches() == 0);
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(of_b.get());
  CHECK(b.fetches() == 1);
  CHECK(c.Gets());
  CHECK(c.fetches() == 0);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST_CASE("a damaged file is fetched from the sender and replaced", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path()), c(folder.path()), d(folder.path());
  REQUIRE(a.Gets());
  REQUIRE(Objects(folder.path()).size() == 1);
  const std::filesystem::path file = Objects(folder.path())[0];
  const uint64_t size_bytes = std::filesystem::file_size(file);
  SECTION("flipped") {
    const uint64_t at = GENERATE_COPY(uint64_t{0}, size_bytes / 2, size_bytes - 1);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto flipped = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(flipped);
  }
  SECTION("cut or extended") {
    std::filesystem::resize_file(
        file, GENERATE_COPY(uint64_t{1}, uint64_t{16}, size_bytes - 1, size_bytes + 1));
  }
  SECTION("another's") {
    REQUIRE(c.Gets(3));
    for (const auto& other : Objects(folder.path())) {
      if (other != file)
        std::filesystem::copy_file(other, file, std::filesystem::copy_options::overwrite_existing);
    }
    c.trainer.ClearLog();
  }
  SECTION("a folder") {
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
  }
  CHECK(b.Gets());
  CHECK(b.fetches() == 1);
  CHECK(b.share->totals().failures == 1);
  if (std::filesystem::is_directory(file)) {
    std::filesystem::remove(file);
  } else {
    CHECK(b.progress.done_bytes == a.progress.done_bytes);
  }
  CHECK(c.Gets());
  CHECK(c.fetches() == 1);
  CHECK(d.Gets());
  CHECK(d.fetches() == 0);
}

TEST_CASE("what a receiver refused is fetched from the sender again", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path());
  REQUIRE(a.Gets());
  REQUIRE(b.Gets());
  const SyncTarget target = b.Target(2);
  b.sources->Refused({.target = target, .rank = TrainerRank(0)});
  b.trainer.ClearLog();
  CHECK(b.Gets());
  CHECK(b.fetches() == 1);
}

TEST_CASE("a folder never has more than its cap and the newest object stays", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path());
  const uint64_t object_bytes = a.trainer.Object(0, 1, 2).size();
  const uint64_t cap = object_bytes + object_bytes / 2;
  REQUIRE(a.Gets(2));
  REQUIRE(a.Gets(3));
  CHECK(Objects(folder.path()).size() == 2);
  Receiver b(folder.path(), {.bytes_max = cap}), c(folder.path(), {.bytes_max = cap});
  CHECK(FolderBytes(folder.path()) <= cap);
  for (uint64_t version = 4; version <= 6; ++version) {
    b.trainer.Publish(0.3);
    c.trainer.Publish(0.3);
    REQUIRE(b.Gets(version));
    CHECK(FolderBytes(folder.path()) <= cap);
    CHECK(c.Gets(version));
  }
  CHECK(c.fetches() == 0);
  CHECK(b.share->totals().failures == 0);
}

TEST_CASE("an object that is too large is fetched by each at once", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path(), {.bytes_max = 1000}), b(folder.path(), {.bytes_max = 1000}),
      c(folder.path(), {.bytes_max = 1000});
  REQUIRE(a.Gets());
  CHECK(a.share->totals().failures == 1);
  CHECK(FolderBytes(folder.path()) == 0);
  Gate gate(b);
  auto of_b = std::async(std::launch::async, [&] { return b.Gets(); });
  REQUIRE(gate.Reached());
  CHECK(c.Gets());
  gate.Open();
  CHECK(of_b.get());
  CHECK(b.fetches() + c.fetches() == 2);
  CHECK(b.share->totals().failures == 0);
}

TEST_CASE("older versions and what a dead receiver left are removed", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path());
  REQUIRE(a.Gets(2));
  const std::string name = Objects(folder.path())[0];
  std::filesystem::rename(name, name + ".tmp");
  std::ofstream(folder.File("notes")) << "somebody's";
  Receiver b(folder.path());
  CHECK_FALSE(std::filesystem::exists(name + ".tmp"));
  CHECK(std::filesystem::exists(folder.File("notes")));
  // One that is being written stays.
  REQUIRE(a.Gets(2));
  auto opened = HostFolder::Open(folder.path(), kBytesMax);
  REQUIRE(opened.ok());
  const std::string stem = std::filesystem::path(name).filename();
  const auto lock = opened->TryLock({.stream = stem.substr(0, 32),
                                     .version = WeightVersion(2),
                                     .object = stem.substr(stem.size() - 32)});
  REQUIRE((lock.ok() && lock->valid()));
  std::ofstream(name + ".tmp") << "written";
  Receiver c(folder.path());
  CHECK(std::filesystem::exists(name + ".tmp"));
  c.trainer.Publish(0.3);
  REQUIRE(c.Gets(3));
  CHECK(std::filesystem::exists(name));
  REQUIRE(c.Gets(4));
  CHECK_FALSE(std::filesystem::exists(name));
  CHECK_FALSE(std::filesystem::exists(name + ".lock"));
  // The files of a job that ended.
  std::filesystem::remove(folder.File("notes"));
  for (const auto& file : Objects(folder.path())) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - 2 * limits::kHostShareAgeMax);
  }
  Receiver d(folder.path());
  CHECK(Objects(folder.path()).empty());
}

TEST_CASE("a receiver that waits for another can be cancelled and waits only so long", "[host]") {
  const TempFolder folder;
  Receiver a(folder.path()), b(folder.path());
  Receiver c(folder.path(), {.wait_max = std::chrono::milliseconds(30)});
  Gate gate(a);
  auto of_a = std::async(std::launch::async, [&] { return a.Gets(); });
  REQUIRE(gate.Reached());
  int asked = 0;
  CHECK(absl::IsCancelled(b.Fetch(2, [&] { return ++asked < 3; }).status()));
  auto of_b = std::async(std::launch::async, [&] { return b.Fetch().status(); });
  CHECK(of_b.wait_for(std::chrono::milliseconds(30)) == std::future_status::timeout);
  b.cancellation.Cancel();
  CHECK(absl::IsCancelled(of_b.get()));
  CHECK(b.fetches() == 0);
  CHECK(c.Gets());
  CHECK(c.fetches() == 1);
  CHECK(c.share->totals().failures == 1);
  gate.Open();
  CHECK(of_a.get());
}

TEST_CASE("a folder that others may write to is refused", "[host]") {
  const TempFolder folder;
  const std::string path = folder.File("share");
  CHECK(HostFolder::Open(path, kBytesMax).ok());
  struct stat found = {};
  REQUIRE(::stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 07777) == 0700);
  const auto refused = [&](const std::string& at) {
    return absl::IsFailedPrecondition(HostFolder::Open(at, kBytesMax).status());
  };
  for (const mode_t mode : {0777U, 0770U, 0702U, 01777U}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(refused(path));
  }
  REQUIRE(::chmod(path.c_str(), 0755) == 0);
  CHECK_FALSE(refused(path));
  std::filesystem::create_symlink(path, folder.File("link"));
  CHECK(refused(folder.File("link")));
  std::ofstream(folder.File("file")) << "x";
  CHECK(refused(folder.File("file")));
  CHECK(absl::IsNotFound(HostFolder::Open(folder.File("no/folder"), kBytesMax).status()));
  // Only root can give it away, and only where there is that user.
  if (::chown(path.c_str(), 65534, 65534) == 0) CHECK(refused(path));
}

TEST_CASE("a folder that goes away costs only the sharing", "[host]") {
  const TempFolder folder;
  Receiver a(folder.File("share"));
  std::filesystem::remove_all(folder.File("share"));
  CHECK(a.Gets(2));
  CHECK(a.Gets(3));
  CHECK(a.share->totals().failures == 2);
}

}  // namespace dws
