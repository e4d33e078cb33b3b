// What can happen to a shared directory: full disks, power cuts at every write, files that are
// torn, lost, swapped or forged. A version is there whole or not at all, and none is ever taken for
// another.
#include <catch2/catch.hpp>

#include "tests/conformance/shared_directory.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a power cut after any failed write leaves a version whole or not at all",
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
    directory.files.FailOperation(0, OkStatus());  // it may not have come to that
    directory.files.LosePower(kept_bytes);
    const std::vector<uint64_t> offered = directory.Offered();
    // An anchor that was not written is there with its delta, or not at all.
    const bool there = offered.back() == 2;
    if (anchor_every > 1 || !failed) CHECK(there == !failed);
    for (const uint64_t version : offered) {
      const auto weights = directory.Read(version);
      REQUIRE(weights.ok());
      CHECK(*weights == directory.rank.At(version));
    }
    // The next try, and the next version, work as if nothing had been.
    REQUIRE(directory.Write().ok());
    CHECK(directory.publisher.view().anchors == (anchor_every == 1 ? 2 : 1));
    REQUIRE(directory.Publish(3).ok());
    const auto weights = directory.Read(3);
    REQUIRE(weights.ok());
    CHECK(*weights == directory.rank.At(3));
  }
  CHECK(operations > 3);
}

TEST_CASE("a folder that is being copied has no version yet", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  const std::string manifest = directory.Folder(2) + "/manifest";
  const std::vector<std::byte> whole = directory.files.Content(manifest);
  REQUIRE(directory.files.Remove(manifest).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1});
  // A mount that does not rename: half of it is there.
  directory.files.SetContent(manifest, {whole.begin(), whole.begin() + 100});
  SharedSource source = directory.Source();
  const auto offer = source.Look(std::nullopt);
  REQUIRE(offer.ok());
  CHECK(offer->versions.size() == 1);
  CHECK_THAT(std::string(Message(offer->trouble)), Contains("its head says"));
  directory.files.SetContent(manifest, whole);
  CHECK(source.Look(std::nullopt)->versions.size() == 2);
}

TEST_CASE("files that are damaged, cut off or lost are never taken for a version", "[shared_fs]") {
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

TEST_CASE("what was read in vain does not count", "[shared_fs]") {
  const bool full = GENERATE(true, false);
  CAPTURE(full);
  Directory directory;
  for (const uint64_t version : {1, 2, 3}) REQUIRE(directory.Publish(version).ok());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const StreamId stream = directory.rank.state()->stream;
  const RankLayout& layout = directory.rank.layout();
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) slices.emplace_back(s);
  TransferProgress progress;
  uint64_t allowed = UINT64_MAX;  // pieces that are wanted
  const Spool::Options options{.folder = "/tmp",
                               .memory_bytes_max = uint64_t{1} << 24,
                               .size_bytes_max = limits::kObjectBytesMax,
                               .progress = &progress,
                               .wanted = [&] { return allowed-- > 0; }};
  const auto read = [&](uint64_t base) {
    // Of other ranks, at the same time.
    progress.done_bytes = 10;
    progress.total_bytes = 20;
    return full ? source.Full(stream, WeightVersion(3), layout, slices, options).status()
                : source.Object(stream, WeightVersion(base), WeightVersion(3), layout, options)
                      .status();
  };
  const std::string path = directory.Folder(full ? 1 : 3) + (full ? "/full" : "/delta");
  const std::vector<std::byte> whole = directory.files.Content(path);
  for (const uint64_t base : {2, 1}) {  // one delta as it lies there, two that are composed
    directory.files.SetContent(path, {whole.begin(), whole.end() - 1});
    CHECK(absl::IsDataLoss(read(base)));  // after several attempts
    CHECK(progress.done_bytes == 10);
    CHECK(progress.total_bytes == 20);
    directory.files.SetContent(path, whole);
    allowed = full ? 2 : 0;
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

TEST_CASE("a folder of another version, stream, rank or job is refused by name", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  SECTION("of another version") {
    directory.Move(directory.Folder(2), directory.Folder(3));
    SharedSource source = directory.Source();
    CHECK_THAT(std::string(Message(source.Look(std::nullopt)->trouble)),
               Contains("was copied or renamed"));
    CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  }
  SECTION("of another stream, with a higher incarnation") {
    const std::string folder = fmt::format(
        "/root/job/rank-00000/{}", shared::StreamName({.incarnation = 9, .id_hi = 1, .id_lo = 1}));
    directory.Move(directory.Folder(1),
                   folder + directory.Folder(1).substr(directory.Folder(1).rfind('/')));
    // It has no version that can be used: the stream that has goes on.
    CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  }
  SECTION("of another job") {
    const std::string folder = directory.Folder(1);
    const std::string other = "/root/other" + folder.substr(std::string("/root/job").size());
    directory.Move(folder, other);
    CHECK_THAT(directory.Refusal(directory.Source({}, "other")), Contains("was copied or renamed"));
  }
  SECTION("of an older stream than what is followed") {
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
  SECTION("of a second stream with the same incarnation") {
    directory.files.SetContent(
        fmt::format("/root/job/rank-00000/{}/x",
                    shared::StreamName({.incarnation = 1, .id_hi = 7, .id_lo = 7})),
        {std::byte{1}});
    CHECK_THAT(directory.Refusal(directory.Source()), Contains("two trainers claim"));
    // Who follows one of them goes on.
    SharedSource source = directory.Source();
    CHECK(source.Look(directory.rank.state()->stream).ok());
  }
}

TEST_CASE("a stream ahead of the clock shuts out neither readers nor the writer", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  const StreamId poisoned{.incarnation = ~uint64_t{0}, .id_hi = 6, .id_lo = 6};
  const std::string folder = "/root/job/rank-00000/" + shared::StreamName(poisoned);
  // One that a receiver would take if it could: whole, and of its own stream.
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

TEST_CASE("where there is a key, what is not signed with it is refused", "[shared_fs]") {
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

TEST_CASE("a sender that was replaced writes nothing more", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  SECTION("by another trainer") {
    directory.files.SetContent(
        fmt::format("/root/job/rank-00000/{}/x",
                    shared::StreamName({.incarnation = 2, .id_hi = 7, .id_lo = 7})),
        {std::byte{1}});
    CHECK_THAT(ToString(directory.Publish(2)), Contains("another trainer has taken over"));
  }
  SECTION("by another sender of its rank") {
    std::string folder = directory.Folder(1);
    folder.back() = '2';
    directory.Move(directory.Folder(1), folder);
    CHECK_THAT(ToString(directory.Publish(2)), Contains("another sender serves trainer rank 0"));
  }
  CHECK(directory.Offered() == std::vector<uint64_t>{1});
}

TEST_CASE("a lost chain begins again with an anchor", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  directory.clock.Pass(limits::kSharedPresenceTimeout);  // nobody follows, as the sender knows then
  // The trainer goes on while the disk does not.
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Publish(2).ok());
  for (uint64_t version = 3; version <= 80; ++version) directory.rank.Publish(version);
  REQUIRE(directory.Write().ok());
  const auto weights = directory.Read(80);
  REQUIRE(weights.ok());
  CHECK(*weights == directory.rank.At(80));
  CHECK(directory.publisher.view().anchors == 2);
  // Nothing is left of what was begun.
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
