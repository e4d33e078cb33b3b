// Faults of a shared directory: full disks, power cuts at every write, files that are torn, lost,
// swapped or forged. A version is there completely or not at all, and is never taken for another.
#include <catch2/catch.hpp>

#include "tests/common/delta/old_state.h"
#include "tests/conformance/shared_directory.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a power cut after any failed write leaves a version complete or not at all",
          "[shared_fs]") {
  const size_t anchor_every = GENERATE(size_t{1}, size_t{32});
  const uint64_t kept_bytes = GENERATE(uint64_t{0}, uint64_t{1000});
  CAPTURE(anchor_every, kept_bytes);
  bool failed = true;
  int operations = 0;
  while (failed) {
    Directory directory(anchor_every);
    REQUIRE(directory.Publish(1).ok());
    ++operations;
    CAPTURE(operations);
    directory.files.FailOperation(operations, ResourceExhaustedError("no space left"));
    failed = !directory.Publish(2).ok();
    directory.files.FailOperation(0, OkStatus());  // disarms it if it was not reached
    directory.files.LosePower(kept_bytes);
    const std::vector<uint64_t> offered = directory.Offered();
    // A version whose anchor was not written is there with its delta, or not at all.
    const bool there = offered.back() == 2;
    if (anchor_every > 1 || !failed) CHECK(there == !failed);
    for (const uint64_t version : offered) {
      const auto weights = directory.Read(version);
      REQUIRE(weights.ok());
      CHECK(*weights == directory.rank.At(version));
    }
    // The next attempt, and the next version, work as if nothing had happened.
    REQUIRE(directory.Write().ok());
    CHECK(directory.publisher.view().anchors == (anchor_every == 1 ? 2 : 1));
    REQUIRE(directory.Publish(3).ok());
    const auto weights = directory.Read(3);
    REQUIRE(weights.ok());
    CHECK(*weights == directory.rank.At(3));
  }
  CHECK(operations > 3);
}

TEST_CASE("a partly copied folder offers no version", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  const std::string manifest = directory.Folder(2) + "/manifest";
  const std::vector<std::byte> whole = directory.files.Content(manifest);
  REQUIRE(directory.files.Remove(manifest).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1});
  // Without an atomic rename half of the manifest may be there.
  directory.files.SetContent(manifest, {whole.begin(), whole.begin() + 100});
  SharedSource source = directory.Source();
  const auto offer = source.Look(std::nullopt);
  REQUIRE(offer.ok());
  CHECK(offer->versions.size() == 1);
  CHECK_THAT(std::string(Message(offer->trouble)), Contains("its head says"));
  directory.files.SetContent(manifest, whole);
  CHECK(source.Look(std::nullopt)->versions.size() == 2);
}

TEST_CASE("damaged or truncated or missing files are never accepted as a version", "[shared_fs]") {
  const std::string name = GENERATE("description", "delta", "full", "full-index");
  CAPTURE(name);
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  const std::string path = directory.Folder(name == "delta" ? 2 : 1) + "/" + name;
  std::vector<std::byte> bytes = directory.files.Content(path);
  REQUIRE_FALSE(bytes.empty());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const StreamId stream = directory.rank.state()->stream;
  const auto read = [&]() -> Status {
    if (name == "description") return source.Describe(stream, WeightVersion(1)).status();
    return directory.Read(2).status();
  };
  REQUIRE(read().ok());

  bytes[bytes.size() / 2] ^= std::byte{1};
  directory.files.SetContent(path, bytes);
  CHECK_THAT(ToString(read()), Contains("DATA_LOSS") && Contains("SHA-256") && Contains(path));
  bytes[bytes.size() / 2] ^= std::byte{1};
  directory.files.SetContent(path, {bytes.begin(), bytes.end() - 1});
  CHECK_THAT(ToString(read()), Contains("DATA_LOSS") && Contains("ends after") && Contains(path));
  REQUIRE(directory.files.Remove(path).ok());
  CHECK_THAT(ToString(read()), Contains("DATA_LOSS") && Contains("manifest names it"));
  directory.files.SetContent(path, bytes);
  CHECK(read().ok());
}

TEST_CASE("bytes of a failed read of deltas do not count as progress", "[shared_fs]") {
  Directory directory;
  for (const uint64_t version : {1, 2, 3}) REQUIRE(directory.Publish(version).ok());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const StreamId stream = directory.rank.state()->stream;
  const RankLayout& layout = directory.rank.layout();
  const samples::OldState old(layout, directory.rank.At(1));
  TransferProgress progress;
  uint64_t allowed = UINT64_MAX;  // how many pieces the caller still wants
  const Spool::Options options{.folder = "/tmp",
                               .memory_bytes_max = uint64_t{1} << 24,
                               .size_bytes_max = limits::kObjectBytesMax,
                               .progress = &progress,
                               .wanted = [&] { return allowed-- > 0; }};
  const auto read = [&](uint64_t base) {
    // Progress of other ranks' transfers at the same time.
    progress.done_bytes = 10;
    progress.total_bytes = 20;
    return source
        .Object(stream, WeightVersion(3), layout,
                {.base = WeightVersion(base), .slices = std::nullopt, .old = &old}, options)
        .status();
  };
  const std::string path = directory.Folder(3) + "/delta";
  const std::vector<std::byte> whole = directory.files.Content(path);
  for (const uint64_t base : {2, 1}) {  // one stored delta, two composed deltas
    directory.files.SetContent(path, {whole.begin(), whole.end() - 1});
    CHECK(absl::IsDataLoss(read(base)));  // after several attempts
    CHECK(progress.done_bytes == 10);
    CHECK(progress.total_bytes == 20);
    directory.files.SetContent(path, whole);
    allowed = 0;
    CHECK(absl::IsCancelled(read(base)));
    CHECK(progress.done_bytes == 10);
    CHECK(progress.total_bytes == 20);
    allowed = UINT64_MAX;
    REQUIRE(source.Look(std::nullopt).ok());
    REQUIRE(read(base).ok());
    CHECK(progress.total_bytes > 20);
    CHECK(progress.done_bytes - 10 == progress.total_bytes - 20);
  }
}

TEST_CASE("a folder of another version or stream or job is refused and named", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  SECTION("the folder is of another version") {
    directory.Move(directory.Folder(2), directory.Folder(3));
    SharedSource source = directory.Source();
    CHECK_THAT(std::string(Message(source.Look(std::nullopt)->trouble)),
               Contains("was copied or renamed"));
    CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  }
  SECTION("the folder is of another stream with a higher incarnation") {
    const std::string folder = fmt::format(
        "/root/job/rank-00000/{}", shared::StreamName({.incarnation = 9, .id_hi = 1, .id_lo = 1}));
    directory.Move(directory.Folder(1),
                   folder + directory.Folder(1).substr(directory.Folder(1).rfind('/')));
    // That stream has no usable version, so the directory's own stream is still offered.
    CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  }
  SECTION("the folder is of another job") {
    const std::string folder = directory.Folder(1);
    const std::string other = "/root/other" + folder.substr(std::string("/root/job").size());
    directory.Move(folder, other);
    CHECK_THAT(directory.Refusal(directory.Source({}, "other")), Contains("was copied or renamed"));
  }
  SECTION("the folder is of an older stream than the one that is followed") {
    const StreamId followed{.incarnation = 5, .id_hi = 1, .id_lo = 1};
    SharedSource source = directory.Source();
    const auto offer = source.Look(followed);
    REQUIRE(offer.ok());
    SubscriptionState state(1, followed);
    state.OnConnect(SenderIndex(0));
    CHECK_THAT(std::string(Message(
                   state.OnWelcome(SenderIndex(0), offer->welcome, kSystemWallClock.Now()))),
               Contains("an old trainer is running again"));
  }
  SECTION("the folder is of a second stream with the same incarnation") {
    directory.files.SetContent(
        fmt::format("/root/job/rank-00000/{}/x",
                    shared::StreamName({.incarnation = 1, .id_hi = 7, .id_lo = 7})),
        {std::byte{1}});
    CHECK_THAT(directory.Refusal(directory.Source()), Contains("two trainers claim"));
    // A reader that already follows one of them continues.
    SharedSource source = directory.Source();
    CHECK(source.Look(directory.rank.state()->stream).ok());
  }
}

TEST_CASE("a stream ahead of the clock blocks neither readers nor the writer", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  const StreamId poisoned{.incarnation = ~uint64_t{0}, .id_hi = 6, .id_lo = 6};
  const std::string folder = "/root/job/rank-00000/" + shared::StreamName(poisoned);
  // A complete version of its own stream, which a receiver would otherwise accept.
  Directory other;
  other.rank.Register(poisoned, RankEpoch(1));
  other.hub.Welcome(other.rank.state());
  REQUIRE(other.Publish(1).ok());
  const std::vector<std::string> names = *other.files.List(folder);
  for (const std::string& name : names) {
    const std::vector<std::string> files = *other.files.List(folder + "/" + name);
    for (const std::string& file : files) {
      const std::string path = fmt::format("{}/{}/{}", folder, name, file);
      directory.files.SetContent(path, other.files.Content(path));
    }
  }
  SharedSource source = directory.Source();
  const auto offer = source.Look(std::nullopt);
  REQUIRE(offer.ok());
  CHECK(offer->welcome.stream == directory.rank.state()->stream);
  CHECK_THAT(std::string(Message(offer->trouble)),
             Contains(ToString(poisoned)) && Contains("ahead of this host's clock"));
  REQUIRE(directory.Publish(2).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
}

TEST_CASE("with a key configured versions not signed with it are refused", "[shared_fs]") {
  const auto key = [](const char* text) {
    const ByteSpan bytes = AsBytes(text);
    return shared::Key{.bytes = {bytes.begin(), bytes.end()}};
  };
  Directory plain;
  REQUIRE(plain.Publish(1).ok());
  CHECK_THAT(plain.Refusal(plain.Source(key("sixteen bytes ok"))), Contains("is not signed"));
  Directory signed_one(32, key("sixteen bytes ok"));
  REQUIRE(signed_one.Publish(1).ok());
  SharedSource source = signed_one.Source(key("sixteen bytes ok"));
  CHECK(source.Look(std::nullopt).ok());
  CHECK_THAT(signed_one.Refusal(signed_one.Source()), Contains("no key to check it with"));
  CHECK_THAT(signed_one.Refusal(signed_one.Source(key("another long key"))),
             Contains("signed with another key"));
}

TEST_CASE("a welcome that is lost or damaged is written again within its interval", "[shared_fs]") {
  const ByteSpan text = AsBytes("sixteen bytes ok");
  const bool sealed = GENERATE(false, true);
  const shared::Key key = sealed ? shared::Key{.bytes = {text.begin(), text.end()}} : shared::Key{};
  Directory directory(32, key);
  REQUIRE(directory.Publish(1).ok());
  const std::string path = directory.WelcomePath();
  const std::vector<std::byte> whole = directory.files.Content(path);
  for (const char* fault : {"lost", "cut off", "another byte"}) {
    CAPTURE(sealed, fault);
    std::vector<std::byte> bytes = whole;
    bytes[bytes.size() / 2] ^= std::byte{1};
    if (fault == std::string("cut off")) bytes = {whole.begin(), whole.end() - 1};
    directory.files.SetContent(path, bytes);
    if (fault == std::string("lost")) REQUIRE(directory.files.Remove(path).ok());
    CHECK_FALSE(directory.Source(key).Look(std::nullopt).ok());
    directory.clock.Pass(SharedWriter::kWelcomeInterval);
    if (sealed) {  // without a version: the next look at reports
      REQUIRE(directory.Write().ok());
    } else {
      REQUIRE(directory.Publish(directory.rank.state()->log->Newest()->version.value() + 1).ok());
    }
    CHECK(directory.files.Content(path) == whole);
    CHECK(directory.Source(key).Look(std::nullopt).ok());
  }
  // No write while it is as it was, and a failed one is tried again.
  directory.clock.Pass(SharedWriter::kWelcomeInterval);
  const int before = directory.files.operation_count();
  REQUIRE(directory.Write().ok());
  CHECK(directory.files.operation_count() == before);
  REQUIRE(directory.files.Remove(path).ok());
  directory.clock.Pass(SharedWriter::kWelcomeInterval);
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Write().ok());
  REQUIRE(directory.Write().ok());
  CHECK(directory.files.Content(path) == whole);
}

TEST_CASE("a lost welcome is written again while full tensors are written", "[shared_fs]") {
  Directory directory(1);
  REQUIRE(directory.Publish(1).ok());
  const std::string path = directory.WelcomePath();
  const std::vector<std::byte> whole = directory.files.Content(path);
  REQUIRE(directory.files.Remove(path).ok());
  // Before the manifest of the delta, which is the third write; full tensors follow, and fail.
  directory.files.BeforeOperation(3, [&] { directory.clock.Pass(SharedWriter::kWelcomeInterval); });
  directory.files.FailOperation(5, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Publish(2).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(directory.files.Content(path) == whole);
}

TEST_CASE("in a store the bytes of a welcome are read less often", "[shared_fs]") {
  Rank rank;
  rank.Publish(1);
  FaultFileSystem files;
  SharedWriter writer(files, {.root = "s3://bucket/prefix", .job_id = "job", .key = {}},
                      rank.state(), [] { return true; });
  REQUIRE(writer.Begin().ok());
  REQUIRE(writer.WriteWelcome().ok());
  const std::string path = writer.stream_folder() + "/" + shared::WelcomeName(RankEpoch(1));
  const std::vector<std::byte> whole = files.Content(path);
  TimePoint now{};
  const auto looks = [&](std::vector<std::byte> bytes) {
    files.SetContent(path, std::move(bytes));
    size_t count = 0;
    while (files.Content(path) != whole) {
      REQUIRE(++count <= 2 * SharedWriter::kWholeLookEvery);
      now += SharedWriter::kWelcomeInterval;
      REQUIRE(writer.KeepWelcome(now).ok());
    }
    return count;
  };
  REQUIRE(writer.KeepWelcome(now).ok());
  CHECK(looks({whole.begin(), whole.end() - 1}) == 1);
  std::vector<std::byte> flipped = whole;
  flipped.front() ^= std::byte{1};
  CHECK(looks(flipped) == SharedWriter::kWholeLookEvery - 1);
  CHECK(looks(flipped) == SharedWriter::kWholeLookEvery);
}

TEST_CASE("a replaced sender writes nothing more", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  SECTION("another trainer replaces it") {
    directory.files.SetContent(
        fmt::format("/root/job/rank-00000/{}/x",
                    shared::StreamName({.incarnation = 2, .id_hi = 7, .id_lo = 7})),
        {std::byte{1}});
    CHECK_THAT(ToString(directory.Publish(2)), Contains("another trainer has taken over"));
  }
  SECTION("another sender of its rank replaces it") {
    std::string folder = directory.Folder(1);
    folder.back() = '2';
    directory.Move(directory.Folder(1), folder);
    CHECK_THAT(ToString(directory.Publish(2)), Contains("another sender serves trainer rank 0"));
  }
  SECTION("another sender of its rank has removed its welcome") {
    std::string folder = directory.Folder(1);
    folder.back() = '2';
    directory.Move(directory.Folder(1), folder);
    const std::string path = directory.WelcomePath();
    const std::vector<std::byte> welcome = directory.files.Content(path);
    REQUIRE(directory.files.Remove(path).ok());
    directory.clock.Pass(SharedWriter::kWelcomeInterval);
    CHECK_THAT(ToString(directory.Write()), Contains("another sender serves trainer rank 0"));
    CHECK(absl::IsNotFound(directory.files.OpenForRead(path).status()));
    directory.files.SetContent(path, welcome);
  }
  CHECK(directory.Offered() == std::vector<uint64_t>{1});
}

TEST_CASE("a broken chain starts again with an anchor", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  directory.clock.Pass(limits::kSharedPresenceTimeout);  // now the sender knows that nobody follows
  // The trainer publishes on while the disk fails.
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Publish(2).ok());
  for (uint64_t version = 3; version <= 80; ++version) directory.rank.Publish(version);
  REQUIRE(directory.Write().ok());
  const auto weights = directory.Read(80);
  REQUIRE(weights.ok());
  CHECK(*weights == directory.rank.At(80));
  CHECK(directory.publisher.view().anchors == 2);
  // Nothing of the unfinished versions is left.
  const std::vector<std::string> names =
      *directory.files.List(directory.Folder(1).substr(0, directory.Folder(1).rfind('/')));
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(
        (name == shared::VersionFolderName({.version = WeightVersion(80), .epoch = RankEpoch(1)}) ||
         name == shared::WelcomeName(RankEpoch(1))));
  }
}

}  // namespace dws
