// The slime versions that a sender publishes: applied by our reader of the format, they give the
// trainer's weights, bit for bit.
#include <catch2/catch.hpp>

#include "tests/fakes/eventually.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/sender_daemon/slime/slime_publishing.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a tensor's slices are joined in row-major order whichever dimension is cut", "[slime]") {
  const TensorSpec tensor{.name = "t", .dtype = DType::kU8, .shape = {2, 3, 2}, .cuts = {{1, {1}}}};
  // The tensor's elements are numbered in row-major order; these are its slices.
  const std::string slices("\x00\x01\x06\x07\x02\x03\x04\x05\x08\x09\x0a\x0b", 12);
  std::vector<std::byte> buffer;
  const ByteSpan rows = RowMajor(tensor, AsBytes(slices), buffer);
  REQUIRE(rows.size() == 12);
  for (uint8_t i = 0; i < 12; ++i) CHECK(rows[i] == std::byte{i});
}

TEST_CASE("a tensor's slices are joined in row-major order when they are a grid", "[slime]") {
  const TensorSpec tensor{
      .name = "t", .dtype = DType::kU16, .shape = {3, 2, 5}, .cuts = {{0, {1}}, {2, {2, 3}}}};
  std::string slices;
  for (uint32_t s = 0; s < tensor.SliceCount(); ++s) {
    const std::vector<DimRange> slice = tensor.Slice(s);
    for (uint64_t i = slice[0].begin; i < slice[0].end; ++i) {
      for (uint64_t j = 0; j < 2; ++j) {
        for (uint64_t k = slice[2].begin; k < slice[2].end; ++k) {
          slices.push_back(static_cast<char>((i * 2 + j) * 5 + k));
          slices.push_back('\0');
        }
      }
    }
  }
  std::vector<std::byte> buffer;
  const ByteSpan rows = RowMajor(tensor, AsBytes(slices), buffer);
  REQUIRE(rows.size() == 60);
  for (uint8_t i = 0; i < 30; ++i) CHECK(rows[2 * i] == std::byte{i});
}

TEST_CASE("versions applied by a reader equal the trainer's weights bit for bit", "[slime]") {
  const auto encoding = GENERATE(slime::Encoding::kXor, slime::Encoding::kOverwrite);
  const auto checksum = GENERATE(slime::ChecksumFormat::kXxh3, slime::ChecksumFormat::kBlake3,
                                 slime::ChecksumFormat::kAdler32);
  const size_t threads = GENERATE(1, 3);
  Publishing rank({.encoding = encoding, .checksum = checksum, .threads = threads});
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  CHECK(rank.IsFull(1));
  REQUIRE(rank.Publish(2).ok());
  rank.Capture(3, 0.3);
  rank.Capture(4);
  REQUIRE(rank.Write().ok());  // writes two versions while the snapshot is newer
  REQUIRE(rank.Publish(5, 0).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2, 3, 4, 5});
  for (uint64_t version = 2; version <= 5; ++version) CHECK_FALSE(rank.IsFull(version));
  rank.Follow(base);
  const SlimeView view = rank.publisher->view();
  CHECK(view.newest == WeightVersion(5));
  CHECK(view.versions == 5);
  CHECK(view.fulls == 1);
  CHECK(view.bytes > rank.layout.size_bytes());
}

TEST_CASE("with a named base the first version is a delta that proves every tensor", "[slime]") {
  const auto encoding = GENERATE(slime::Encoding::kXor, slime::Encoding::kOverwrite);
  const size_t threads = GENERATE(1, 3);
  const double density = GENERATE(0.0, 0.001);  // the first version is the base, or near it
  Publishing rank({.encoding = encoding, .from_base = true, .threads = threads});
  rank.dir.checkpoint = rank.CopyBase("base");
  rank.Restart();
  const std::string reader = rank.CopyBase("reader");
  REQUIRE(rank.Write().ok());
  if (density == 0) {
    PublishAll(rank.state, rank.pool, 1, rank.weights);
    rank.published[1] = rank.Checkpoint();
  } else {
    rank.Capture(1, density);
  }
  rank.Capture(2);  // the first one is read back from a newer snapshot
  REQUIRE(rank.Write().ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2});
  CHECK_FALSE(rank.IsFull(1));
  const auto index = slime::ReadVersionIndex(rank.files, rank.Folder(1));
  CHECK(index->delta->base_version == 0);
  CHECK(index->weight_map.size() == rank.layout.shards().size() - 1);  // all but the empty one
  CHECK(rank.publisher->view().fulls == 0);
  CHECK(rank.publisher->view().bytes < rank.layout.size_bytes() / 20);
  const std::string late = rank.CopyBase("late");  // not the base: the weights of version 2
  rank.Follow(reader);
  auto other = slime::LocalCheckpoint::Open(rank.files, rank.pool, late, {});
  REQUIRE(other.ok());
  const auto refused = (*other)->Apply(rank.Folder(1));
  CHECK_THAT(ToString(refused.status()), Contains("not a delta of the local checkpoint"));
  CHECK((*other)->version() == 0);
}

TEST_CASE("where the named base does not fit the first version is full", "[slime]") {
  Publishing rank({.keep = 2, .from_base = true});
  rank.dir.checkpoint = rank.CopyBase("base");
  rank.Restart();
  const std::string reader = rank.CopyBase("reader");
  SECTION("another shape") {
    const std::string scalar("\0\0\0\0", 4);
    const std::vector<safetensors::HeaderTensor> tensors = {
        {.name = "scalar", .dtype = safetensors::FileDType::kF32, .shape = {}}};
    rank.dir.checkpoint = rank.temporary.File("other");
    REQUIRE(safetensors::WriteCheckpoint(rank.files, rank.dir.checkpoint, tensors,
                                         [&](const safetensors::HeaderTensor&) -> Result<ByteSpan> {
                                           return AsBytes(scalar);
                                         },
                                         {})
                .ok());
    rank.Restart();
    REQUIRE(rank.Publish(1).ok());
    CHECK(rank.IsFull(1));
  }
  SECTION("no checkpoint") {
    rank.dir.checkpoint = rank.temporary.File("none");
    rank.Restart();
    REQUIRE(rank.Publish(1).ok());
    CHECK(rank.IsFull(1));
  }
  SECTION("numbers that begin later") {
    REQUIRE(rank.Publish(7).ok());
    CHECK(rank.IsFull(7));
    rank.Follow(reader);
    return;
  }
  SECTION("a restarted sender") {
    REQUIRE(rank.Publish(1).ok());
    CHECK_FALSE(rank.IsFull(1));
    rank.Register(1, 2);
    rank.Restart();
    REQUIRE(rank.Publish(2).ok());
    CHECK(rank.IsFull(2));
  }
  REQUIRE(rank.Publish(3).ok());
  CHECK(!rank.publisher->failure().has_value());
  rank.Follow(reader);
}

TEST_CASE("a folder that begins with a delta of the base keeps it until a full version",
          "[slime]") {
  Publishing rank({.keep = 2, .from_base = true});
  rank.dir.checkpoint = rank.CopyBase("base");
  rank.Restart();
  for (uint64_t version = 1; version <= 2; ++version) REQUIRE(rank.Publish(version).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2});
  REQUIRE(rank.Publish(3).ok());
  CHECK(rank.IsFull(3));
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2, 3});
  REQUIRE(rank.Publish(4).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{3, 4});
}

TEST_CASE("a version that changes nothing is published without tensors", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  PublishAll(rank.state, rank.pool, 2, rank.weights);
  rank.published[2] = rank.published[1];
  REQUIRE(rank.Write().ok());
  CHECK(slime::ReadVersionIndex(rank.files, rank.Folder(2))->weight_map.empty());
  rank.Follow(base);
}

TEST_CASE("a broken chain starts again with a full checkpoint", "[slime]") {
  Publishing rank({}, {.bytes_max = uint64_t{1} << 30, .versions_max = 2});
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  SECTION("the log has dropped a version that was not written in time") {
    for (uint64_t version = 2; version <= 6; ++version) rank.Capture(version);
    REQUIRE(rank.Write().ok());
    CHECK(rank.Versions() == std::vector<uint64_t>{1, 6});
    CHECK(rank.IsFull(6));
    REQUIRE(rank.Publish(7).ok());
    CHECK_FALSE(rank.IsFull(7));
  }
  SECTION("the trainer skips a version number") {
    REQUIRE(rank.Publish(3).ok());
    REQUIRE(rank.Publish(4).ok());
    CHECK(rank.Versions() == std::vector<uint64_t>{1, 3, 4});
    CHECK(rank.IsFull(3));
    CHECK_FALSE(rank.IsFull(4));
  }
  rank.Follow(base);
}

TEST_CASE("damage in the sender's memory is never published", "[slime]") {
  const size_t threads = GENERATE(1, 3);
  Publishing rank({.threads = threads});
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  rank.Capture(2);
  std::byte& byte = rank.state->snapshot->SliceBytes(RankSlice(3))[50'000];  // of "bytes"
  byte ^= std::byte{4};
  CHECK_THAT(ToString(rank.Write()), Contains("DATA_LOSS") && Contains("tensor 'bytes'"));
  CHECK(rank.Versions() == std::vector<uint64_t>{1});
  byte ^= std::byte{4};
  REQUIRE(rank.Write().ok());
  CHECK(rank.IsFull(2));
  rank.Follow(base);
}

TEST_CASE("only a trainer whose ranks have whole tensors can be published", "[slime]") {
  TempFolder folder;
  PosixFileSystem files;
  SlimePublisher publisher({.dir = {.root = folder.File("versions")}}, files);
  const DeltaLogLimits limits{uint64_t{1} << 30, 64};
  for (const uint32_t rank : {0U, 1U}) {
    RankState state = *MakeState(
        MakeLayout(
            {{.tensor = {.name = "a", .shape = {10}}},
             {.tensor = {.name = "b", .shape = {10}, .cuts = {{0, {5}}}}, .cells = {{1, 1}}}}),
        limits);
    state.trainer_rank = TrainerRank(rank);
    state.world_size = 2;
    publisher.Offer(std::make_shared<const RankState>(std::move(state)));
    CHECK_THAT(
        ToString(publisher.Step().status()),
        Contains("FAILED_PRECONDITION") && Contains("slices 1 + 1 of the 2 slices of tensor 'b'"));
  }
  CHECK_FALSE(std::filesystem::exists(folder.File("versions")));
}

TEST_CASE("a full disk leaves no partial version and the failed version is retried", "[slime]") {
  const RankLayout layout = WholeLayout();
  std::mt19937_64 random{7};
  ThreadPool pool{0};
  int operation = 0;
  for (bool failed = true; failed;) {
    CAPTURE(++operation);
    FaultFileSystem files;
    SlimePublisher publisher({.dir = {.root = "/versions"}}, files);
    const auto write = [&](const RankStatePtr& state) -> Status {
      publisher.Offer(state);
      for (Result<bool> more = true; *more;) {
        more = publisher.Step();
        if (!more.ok()) return more.status();
      }
      return OkStatus();
    };
    const RankStatePtr state = MakeState(layout, {uint64_t{1} << 30, 64});
    Weights weights = RandomWeights(layout, random);
    PublishAll(state, pool, 1, weights);
    files.FailOperation(operation, ResourceExhaustedError("no space left"));
    failed = !write(state).ok();
    if (failed) CHECK(slime::ListVersions(files, "/versions")->empty());
    REQUIRE(write(state).ok());
    Perturb(weights, 0.01, random);
    PublishAll(state, pool, 2, weights);
    files.FailOperation(operation, ResourceExhaustedError("no space left"));
    const bool delta_failed = !write(state).ok();
    if (delta_failed) CHECK(*slime::ListVersions(files, "/versions") == std::vector<uint64_t>{1});
    files.FailOperation(0, OkStatus());
    REQUIRE(write(state).ok());
    const auto index = slime::ReadVersionIndex(files, "/versions/weight_v000002");
    REQUIRE(index.ok());
    CHECK(index->delta.has_value());
  }
  CHECK(operation > 5);
}

TEST_CASE("a command that is not required runs again for the newest version after a restart",
          "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  // The sender that wrote it was stopped, and its command with it.
  const std::string visible = rank.temporary.File("visible");
  rank.Register(1, 2);
  rank.publisher = std::make_unique<SlimePublisher>(
      SlimePublisher::Options{
          .dir = rank.dir,
          .after_write = shared::VisibilityHook({"/usr/bin/touch", visible}, rank.dir.root)},
      rank.files);
  REQUIRE(rank.Write().ok());
  CHECK(std::filesystem::exists(visible));
}

TEST_CASE("a version counts as published only when the required command has succeeded", "[slime]") {
  const bool required = GENERATE(true, false);
  Publishing rank({.keep = 1, .after_write_required = required});
  const std::string base = rank.CopyBase("base");
  const std::string visible = rank.temporary.File("visible");
  const auto restart = [&] {
    rank.publisher = std::make_unique<SlimePublisher>(
        SlimePublisher::Options{
            .dir = rank.dir,
            .after_write = shared::VisibilityHook({"/usr/bin/test", "-e", visible}, rank.dir.root)},
        rank.files);
  };
  restart();
  REQUIRE(rank.Write().ok());
  const Status told = rank.Publish(1);
  if (!required) {
    CHECK(told.ok());
    CHECK(rank.publisher->view().newest == WeightVersion(1));
    return;
  }
  CHECK_THAT(ToString(told), Contains("after version 1: ") && Contains("ended with status 1"));
  // Nothing more is written or removed until the command succeeds.
  CHECK_FALSE(rank.Publish(2).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1});
  CHECK_FALSE(rank.publisher->view().newest.has_value());
  CHECK(rank.publisher->view().versions == 0);
  std::ofstream(visible) << "";
  REQUIRE(rank.Write().ok());
  CHECK(rank.publisher->view().newest == WeightVersion(2));
  CHECK(rank.publisher->view().versions == 2);
  std::filesystem::remove(visible);
  CHECK_FALSE(rank.Publish(3).ok());  // full, and what is before it must stay
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 2, 3});
  CHECK(rank.publisher->view().newest == WeightVersion(2));

  rank.Register(1, 2);
  restart();
  CHECK_THAT(ToString(rank.Write()), Contains("after version 3: "));
  CHECK_FALSE(rank.publisher->view().newest.has_value());
  std::ofstream(visible) << "";
  REQUIRE(rank.Write().ok());
  CHECK(rank.publisher->view().newest == WeightVersion(3));
  REQUIRE(rank.Publish(4).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{4});
  rank.Follow(base);
}

TEST_CASE("a publisher's thread writes the versions it is offered and reports when it is done",
          "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  rank.publisher->Start();
  rank.publisher->Offer(rank.state);
  for (uint64_t version = 1; version <= 3; ++version) {
    rank.Capture(version);
    rank.publisher->Offer(rank.state);
  }
  CHECK(Eventually([&] { return rank.publisher->settled(); }));
  CHECK(rank.publisher->view().newest == WeightVersion(3));
  CHECK(!rank.publisher->failure().has_value());
  rank.publisher->Stop();
  rank.Follow(base);
}

}  // namespace dws
