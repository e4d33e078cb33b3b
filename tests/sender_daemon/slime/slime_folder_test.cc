// The owner of slime's folder of versions, and the versions that stay in it.
#include <catch2/catch.hpp>

#include "tests/fakes/fault_file_system.h"
#include "tests/sender_daemon/slime/slime_publishing.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a restarted sender continues in its own folder", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  REQUIRE(rank.Publish(2).ok());
  // The sender died in the middle of the next version.
  const std::filesystem::path half = std::filesystem::path(rank.Folder(3)).parent_path() /
                                     slime::UnfinishedFolderName(3, SlimeWriterName(*rank.state));
  std::filesystem::create_directories(half);
  std::ofstream(half / "model-00000.tmp") << "half";

  rank.Register(1, 2);
  rank.Restart();
  REQUIRE(rank.Write().ok());  // nothing is published yet
  CHECK_FALSE(std::filesystem::exists(half));
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2});
  CHECK(rank.publisher->view().newest == WeightVersion(2));
  REQUIRE(rank.Publish(3).ok());
  REQUIRE(rank.Publish(4).ok());
  CHECK(rank.IsFull(3));
  CHECK_FALSE(rank.IsFull(4));
  rank.Follow(base);

  SECTION("the sender of before the restart writes nothing more") {
    rank.Register(1, 1);
    rank.Restart();
    rank.Capture(5);
    CHECK_THAT(ToString(rank.Write()), Contains("another sender publishes there now"));
  }
  SECTION("version numbers that are already published are refused") {
    rank.Register(1, 3);
    rank.Capture(2);
    CHECK_THAT(ToString(rank.Write()), Contains("has version 4 already") && Contains("version 5"));
    REQUIRE(rank.Publish(5).ok());
    CHECK(rank.IsFull(5));
  }
}

TEST_CASE("a folder with foreign versions is refused and left unchanged", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  SECTION("the versions are of another run") {
    REQUIRE(rank.Publish(1).ok());
    rank.Register(2, 2);
    rank.Restart();
    CHECK_THAT(ToString(rank.Write()), Contains("FAILED_PRECONDITION") &&
                                           Contains("it has versions of stream 1:") &&
                                           Contains("empty the folder"));
    rank.Capture(1);
    CHECK_FALSE(rank.Write().ok());
    // `rm -r folder/weight_v*`: the folder is empty, and is taken without a restart.
    std::filesystem::remove_all(rank.Folder(1));
    REQUIRE(rank.Write().ok());
  }
  SECTION("a version does not name its writer") {
    auto writer = slime::VersionWriter::Create(rank.files, rank.dir.root, {.version = 1});
    REQUIRE((*writer)->Finish().ok());
    CHECK_THAT(ToString(rank.Write()), Contains("weight_v000001 is of another writer"));
    std::filesystem::remove_all(rank.dir.root);
    REQUIRE(rank.Publish(1).ok());
  }
  SECTION("a foreign version is being written") {
    const bool in_ours = GENERATE(false, true);
    if (in_ours) REQUIRE(rank.Publish(1).ok());
    std::filesystem::create_directories(rank.Folder(7));
    std::ofstream(rank.Folder(7) + "/model-00000.tmp") << "theirs";
    rank.Restart();
    CHECK_THAT(ToString(rank.Write()), Contains("another process writes weight_v000007 there"));
    CHECK(std::filesystem::exists(rank.Folder(7) + "/model-00000.tmp"));
    std::filesystem::remove_all(rank.dir.root);
    REQUIRE(rank.Publish(2).ok());
  }
  SECTION("a foreign version appears later") {
    REQUIRE(rank.Publish(1).ok());
    std::filesystem::create_directories(rank.Folder(2));
    std::ofstream(rank.Folder(2) + "/model-00000.tmp") << "theirs";
    CHECK_THAT(ToString(rank.Publish(2)), Contains("weight_v000002 exists already"));
    CHECK(std::filesystem::exists(rank.Folder(2) + "/model-00000.tmp"));
    std::filesystem::remove_all(rank.Folder(2));
    REQUIRE(rank.Write().ok());
  }
  rank.Follow(base);
}

TEST_CASE("a folder that was emptied or lost files is taken over again with a full checkpoint",
          "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  REQUIRE(rank.Publish(2).ok());
  SECTION("its versions are gone") {
    std::filesystem::remove_all(rank.Folder(1));
    std::filesystem::remove_all(rank.Folder(2));
    CHECK_THAT(ToString(rank.Publish(3)), Contains("the newest version of this stream needs it"));
  }
  SECTION("the version that the chain begins with is gone") {
    std::filesystem::remove_all(rank.Folder(1));
    CHECK_THAT(ToString(rank.Publish(3)), Contains("weight_v000001 is missing"));
    std::filesystem::remove_all(rank.Folder(2));  // nobody can apply it
  }
  SECTION("the whole folder is gone") {
    std::filesystem::remove_all(rank.dir.root);
    CHECK_THAT(ToString(rank.Publish(3)), Contains(".dws_publisher is missing"));
  }
  SECTION("the file with the owner is gone") {
    std::filesystem::remove(rank.dir.root + "/.dws_publisher");
    CHECK_THAT(ToString(rank.Publish(3)), Contains(".dws_publisher is missing"));
  }
  REQUIRE(rank.Write().ok());
  CHECK(rank.IsFull(3));
  REQUIRE(rank.Publish(4).ok());
  CHECK_FALSE(rank.IsFull(4));
  rank.Follow(base);
}

TEST_CASE("a sender that loses an empty folder to another run does not take it back", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Write().ok());  // takes the folder over; nothing is published yet
  const RankStatePtr ours = rank.state;
  rank.Register(2, 1);
  SlimePublisher other({.dir = rank.dir}, rank.files);
  other.Offer(rank.state);
  REQUIRE(other.Step().ok());
  rank.state = ours;
  rank.Capture(1);
  for (int round = 0; round < 3; ++round) {
    CHECK_THAT(ToString(rank.Write()), Contains("another sender publishes there now"));
  }
  REQUIRE(other.Step().ok());
  std::filesystem::remove_all(rank.dir.root);
  REQUIRE(rank.Write().ok());
  rank.Follow(base);
}

TEST_CASE("the unfinished version of an earlier sender can no longer be published", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  // An earlier sender hangs just before it publishes.
  const RankState before = *rank.state;
  const std::string writer = SlimeWriterName(before);
  REQUIRE(slime::BeginVersionFolder(rank.files, rank.dir.root, 2, writer).ok());
  rank.Register(1, 2);
  rank.Restart();
  REQUIRE(rank.Publish(2).ok());
  CHECK(rank.IsFull(2));
  CHECK(absl::IsNotFound(slime::PublishVersionFolder(rank.files, rank.dir.root, 2, writer)));
  rank.Follow(base);
}

TEST_CASE("disk errors are retried and a foreign version of the same name stays and is reported",
          "[slime]") {
  FaultFileSystem files;
  SlimePublisher publisher({.dir = {.root = "/versions"}}, files);
  std::mt19937_64 random{7};
  ThreadPool pool{0};
  const RankStatePtr state = MakeState(WholeLayout(), {uint64_t{1} << 30, 64});
  PublishAll(state, pool, 1, RandomWeights(WholeLayout(), random));
  publisher.Offer(state);
  // A disk error does not count as damage of our memory and is retried.
  int operation = 0;
  for (bool failed = true; failed;) {
    CAPTURE(++operation);
    files.FailOperation(operation, DataLossError("Input/output error"));
    const Status status = publisher.Step().status();
    failed = !status.ok();
    CHECK_THAT(ToString(status), !Contains("memory is damaged"));
    if (failed) CHECK(slime::ListVersions(files, "/versions")->empty());
  }
  CHECK(operation > 5);
  CHECK(*slime::ListVersions(files, "/versions") == std::vector<uint64_t>{1});

  Weights weights = RandomWeights(WholeLayout(), random);
  PublishAll(state, pool, 2, weights);
  files.SetContent("/versions/weight_v000002/model-00000.tmp", std::vector<std::byte>(3));
  CHECK_THAT(ToString(publisher.Step().status()), Contains("weight_v000002 exists already"));
  CHECK_THAT(ToString(publisher.Step().status()),
             Contains("another process writes weight_v000002"));
  CHECK(files.Content("/versions/weight_v000002/model-00000.tmp").size() == 3);
}

TEST_CASE("a version is published only with all tensors of the base checkpoint", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  std::ofstream(base + "/config.json") << "{}";
  auto read = ReadBaseCheckpoint(rank.files, base);
  REQUIRE(read.ok());
  CHECK(read->tensors.size() == rank.layout.shards().size());
  CHECK(read->side_files.size() == 1);
  SECTION("the base folder has no weights") {
    std::filesystem::create_directories(rank.temporary.File("snapshots"));
    CHECK_THAT(ToString(ReadBaseCheckpoint(rank.files, rank.temporary.File("snapshots")).status()),
               Contains("INVALID_ARGUMENT") && Contains("--slime-checkpoint"));
  }
  SECTION("the trainer lacks a tensor of the base") {
    read->tensors["lm_head.weight"] = {};
    rank.publisher = std::make_unique<SlimePublisher>(
        SlimePublisher::Options{.dir = rank.dir, .base = *std::move(read)}, rank.files);
    CHECK_THAT(ToString(rank.Publish(1)),
               Contains("FAILED_PRECONDITION") && Contains("'lm_head.weight'"));
    CHECK_FALSE(std::filesystem::exists(rank.Folder(1)));
  }
  SECTION("the trainer has all tensors of the base") {
    rank.publisher = std::make_unique<SlimePublisher>(
        SlimePublisher::Options{.dir = rank.dir, .base = *std::move(read)}, rank.files);
    REQUIRE(rank.Publish(1).ok());
    CHECK(std::filesystem::exists(rank.Folder(1) + "/config.json"));
  }
}

TEST_CASE("a new reader always finds every version from a full checkpoint to the newest",
          "[slime]") {
  const size_t keep = GENERATE(1, 2, 3);
  CAPTURE(keep);
  Publishing rank({.keep = keep});
  const std::string slow = rank.CopyBase("slow");  // follows at every version
  for (uint64_t version = 1; version <= 12; ++version) {
    CAPTURE(version);
    REQUIRE(rank.Publish(version).ok());
    const std::vector<uint64_t> there = rank.Versions();
    REQUIRE(there.back() == version);
    CHECK(rank.IsFull(there.front()));
    CHECK(there.back() - there.front() + 1 == there.size());  // no gap
    CHECK(there.size() >= std::min<size_t>(keep, version));
    CHECK(there.size() <= 2 * keep);
    const auto fulls =
        std::count_if(there.begin(), there.end(), [&](uint64_t one) { return rank.IsFull(one); });
    CHECK(fulls <= 2);
    rank.Follow(slow);
    rank.Follow(rank.CopyBase("new at " + std::to_string(version)));
  }
  CHECK(rank.publisher->view().fulls == 12 / (keep + 1) + (12 % (keep + 1) == 0 ? 0 : 1));
}

TEST_CASE("a broken chain and a restart leave no reader without a full checkpoint", "[slime]") {
  Publishing rank({.keep = 3});
  for (uint64_t version = 1; version <= 3; ++version) REQUIRE(rank.Publish(version).ok());
  REQUIRE(rank.Publish(5).ok());  // full: 4 was left out
  REQUIRE(rank.Publish(6).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2, 3, 5, 6});
  REQUIRE(rank.Publish(7).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{5, 6, 7});
  rank.Register(1, 2);
  rank.Restart();
  REQUIRE(rank.Publish(8).ok());  // full: the sender has nothing to compare with
  CHECK(rank.Versions() == std::vector<uint64_t>{5, 6, 7, 8});
  for (uint64_t version = 9; version <= 11; ++version) REQUIRE(rank.Publish(version).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{8, 9, 10, 11});
  REQUIRE(rank.Publish(12).ok());
  CHECK(rank.IsFull(12));
  rank.Follow(rank.CopyBase("late"));
}

TEST_CASE("what is kept no longer is removed before the first version of a process", "[slime]") {
  Publishing rank;
  for (const uint64_t version : {10, 20, 30, 40}) REQUIRE(rank.Publish(version).ok());
  rank.dir.keep = 2;
  rank.Restart();
  CHECK_FALSE(rank.Write().ok());  // there is nothing newer to publish
  CHECK(rank.Versions() == std::vector<uint64_t>{30, 40});
}

TEST_CASE("with full checkpoints only the newest of them are kept", "[slime]") {
  Publishing rank({.keep = 2});
  for (const uint64_t version : {10, 20, 30, 40}) REQUIRE(rank.Publish(version).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{30, 40});
}

}  // namespace dws
