// A shared directory of which a receiver has several copies: some lag, some hang.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "receiver_daemon/transfer/shared/shared_links.h"
#include "tests/conformance/shared_directory.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/hanging_file_system.h"

namespace dws {
namespace {

constexpr TrainerRank kRank{0};

// All files below `folder`.
void CopyTree(FaultFileSystem& from, FaultFileSystem& to, const std::string& folder) {
  const Result<std::vector<std::string>> names = from.List(folder);
  REQUIRE(names.ok());
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    if (from.ReadFile(path, uint64_t{1} << 30).ok()) {
      to.SetContent(path, from.Content(path));
    } else {
      CopyTree(from, to, path);
    }
  }
}

// A directory that is the last place, and a copy of it that is asked first.
struct Copies {
  // From now on the first place stays as it is.
  void Freeze() { CopyTree(directory.files, frozen, "/root"); }
  void Follow(std::optional<VersionAt> live = std::nullopt) {
    subscription.emplace(std::vector<std::string>{"rank-00000"},
                         live.has_value() ? std::optional(live->stream) : std::nullopt, changed,
                         directory.clock);
    subscription->SetLive(live, {Digest{}});
    auto made = SharedLinks::Create({.root = "/root",
                                     .is_remote = true,
                                     .before = {{.root = "/root", .files = &first}},
                                     .name = {.job_id = "job", .receiver_id = "r0"},
                                     .ranks = 1,
                                     .pool = &directory.pool,
                                     .poll = std::chrono::milliseconds(1)},
                                    directory.files, *subscription);
    REQUIRE(made.ok());
    links = *std::move(made);
    links->Start();
  }
  bool Reaches(uint64_t version) {
    return Eventually([&] {
      const auto target = subscription->Target();
      return target.has_value() && target->version == WeightVersion(version);
    });
  }
  StreamId stream() { return directory.rank.state()->stream; }
  ~Copies() {
    first.Release();
    if (links != nullptr) links->Stop();
  }

  Directory directory;
  FaultFileSystem frozen;
  HangingFileSystem first{frozen};
  ChangeSignal changed;
  std::optional<Subscription> subscription;
  std::unique_ptr<SharedLinks> links;
};

// Files whose manifests cannot be read, as `error` says.
class NoManifests final : public FileSystem {
 public:
  NoManifests(FileSystem& under, Status error) : under_(under), error_(std::move(error)) {}
  int asked() const { return asked_; }

  Result<std::vector<std::byte>> ReadFile(const std::string& /*path*/,
                                          uint64_t /*size_bytes_max*/) override {
    ++asked_;
    return error_;
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return under_.List(folder);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& /*path*/) override {
    return error_;
  }
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& /*path*/) override {
    return error_;
  }
  Result<std::unique_ptr<AppendFile>> Create(const std::string& /*path*/) override {
    return error_;
  }
  Status Rename(const std::string& /*from*/, const std::string& /*to*/) override { return error_; }
  Status ReplaceFile(const std::string& /*path*/, ByteSpan /*bytes*/) override { return error_; }
  Status MakeFolders(const std::string& /*folder*/) override { return error_; }
  Status Remove(const std::string& /*path*/) override { return error_; }
  Status RemoveFolder(const std::string& /*folder*/) override { return error_; }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& /*path*/) override { return error_; }

 private:
  FileSystem& under_;
  const Status error_;
  int asked_ = 0;
};

}  // namespace

TEST_CASE("a place that has less than the engine is passed over", "[shared]") {
  Copies it;
  REQUIRE(it.directory.Publish(1).ok());
  it.Freeze();
  REQUIRE(it.directory.Publish(2).ok());
  it.Follow(VersionAt{.stream = it.stream(), .version = WeightVersion(2)});
  CHECK(it.Reaches(2));
  CHECK(it.subscription->Behind().empty());
  CHECK(it.subscription->WithoutSender() == Duration::zero());
  REQUIRE(it.directory.Publish(3).ok());
  CHECK(it.Reaches(3));
}

TEST_CASE("a place that has an older run only is passed over", "[shared]") {
  Copies it;
  REQUIRE(it.directory.Publish(1).ok());
  it.Freeze();
  StreamId next = it.stream();
  ++next.incarnation;
  it.directory.rank.Register(next, RankEpoch(2));
  it.directory.hub.Welcome(it.directory.rank.state());
  REQUIRE(it.directory.Publish(1).ok());
  it.Follow(VersionAt{.stream = next, .version = WeightVersion(1)});
  REQUIRE(it.Reaches(1));
  CHECK(it.subscription->Target()->stream == next);
  CHECK(it.subscription->Peers()[0].last_error.empty());
}

TEST_CASE("a place that is frozen at the newest version is noticed", "[shared]") {
  Copies it;
  REQUIRE(it.directory.Publish(1).ok());
  it.Freeze();
  it.Follow();
  REQUIRE(it.Reaches(1));
  for (uint64_t version = 2; version <= 3; ++version) {
    REQUIRE(it.directory.Publish(version).ok());
    CHECK(it.Reaches(version));
  }
}

TEST_CASE("a run that was forgotten makes no place lag", "[shared]") {
  Copies it;
  REQUIRE(it.directory.Publish(1).ok());
  it.Freeze();
  StreamId newer = it.stream();
  ++newer.incarnation;
  it.Follow(VersionAt{.stream = newer, .version = WeightVersion(7)});
  REQUIRE(Eventually([&] {
    return it.subscription->Peers()[0].last_error.find("an old trainer") != std::string::npos;
  }));
  it.subscription->Forget(std::nullopt);
  it.links->Reconnect();
  CHECK(it.Reaches(1));
}

TEST_CASE("a place whose look hangs does not hold what the last one has", "[shared]") {
  Copies it;
  REQUIRE(it.directory.Publish(1).ok());
  it.Freeze();
  it.Follow();
  REQUIRE(it.Reaches(1));
  it.first.Hang();
  REQUIRE(Eventually([&] { return it.first.holds_list(); }));
  REQUIRE(it.directory.Publish(2).ok());
  const SyncTarget target{.stream = it.stream(), .version = WeightVersion(2), .ranks = {}};
  const auto description = it.links->Describe(target, kRank);
  INFO(ToString(description.status()));
  CHECK(description.ok());
  CHECK(it.first.holds_list());
}

TEST_CASE("manifests that do not come end a look at a directory", "[shared]") {
  Directory directory;
  for (uint64_t version = 1; version <= 6; ++version) REQUIRE(directory.Publish(version).ok());
  using Code = absl::StatusCode;
  const auto [code, asked] = GENERATE(table<Code, int>(
      {{Code::kDeadlineExceeded, 1}, {Code::kCancelled, 1}, {Code::kUnavailable, 3}}));
  const Status error = MakeStatus(code, "no manifest");
  NoManifests files(directory.files, error);
  shared::VersionCatalog catalog(
      files, {.job_id = "job",
              .rank = kRank,
              .stream = directory.rank.state()->stream,
              .folder = fmt::format("/root/job/rank-00000/{}",
                                    shared::StreamName(directory.rank.state()->stream)),
              .key = {}});
  CHECK(catalog.Refresh() == error);
  CHECK(files.asked() == asked);
  // What is wrong with one version only says nothing of the others.
  NoManifests torn(directory.files, DataLossError("torn"));
  shared::VersionCatalog other(torn, catalog.place());
  CHECK(other.Refresh().ok());
  CHECK(torn.asked() == 6);
}

}  // namespace dws
