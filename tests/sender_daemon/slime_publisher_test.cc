// What a sender publishes as slime's versions: applied by our reader of the format, it gives the
// trainer's weights, bit for bit.
#include "sender_daemon/slime/slime_publisher.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/apply.h"
#include "common/formats/slime_delta/version_writer.h"
#include "sender_daemon/slime/tensor_reader.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// Tensors that are whole, cut into rows, cut across rows, empty and scalar; two blocks and more.
RankLayout WholeLayout() {
  return MakeLayout(
      {{.tensor = {.name = "across", .shape = {3, 40, 1000}, .cut_dim = 1, .cuts = {7, 20}},
        .slice_count = 3},
       {.tensor = {.name = "bytes", .dtype = DType::kF8E4M3, .shape = {70'001}}},
       {.tensor = {.name = "empty", .dtype = DType::kF32, .shape = {0, 5}}},
       {.tensor = {.name = "rows", .shape = {300, 1001}, .cuts = {100}}, .slice_count = 2},
       {.tensor = {.name = "scalar", .dtype = DType::kF64, .shape = {}}}});
}

// One trainer rank with its publisher, whose folder is real.
struct Publishing {
  explicit Publishing(SlimeDirOptions options = {},
                      DeltaLogLimits log_limits = {uint64_t{1} << 30, 64})
      : limits(log_limits), weights(RandomWeights(layout, random)) {
    options.root = temporary.File("versions");
    dir = options;
    Register(1, 1);
    Restart();
  }
  // A trainer registers: a new stream, or the old one with a sender that was started anew.
  void Register(uint64_t incarnation, uint64_t epoch) {
    RankState made = *MakeState(layout, limits);
    made.stream.incarnation = incarnation;
    made.rank_epoch = RankEpoch(epoch);
    state = std::make_shared<const RankState>(std::move(made));
  }
  void Restart() {
    publisher = std::make_unique<SlimePublisher>(SlimePublisher::Options{.dir = dir}, files);
  }
  void Capture(uint64_t version, double density = 0.001) {
    Perturb(weights, density, random);
    PublishAll(state, pool, version, weights);
    published[version] = Checkpoint();
  }
  Status Write() {
    publisher->Offer(state);
    while (true) {
      const Result<bool> more = publisher->Step();
      if (!more.ok()) return more.status();
      if (!*more) return OkStatus();
    }
  }
  Status Publish(uint64_t version, double density = 0.001) {
    Capture(version, density);
    return Write();
  }

  // The weights as a checkpoint has them now: by tensor, row-major.
  std::map<std::string, std::vector<std::byte>> Checkpoint() const {
    std::map<std::string, std::vector<std::byte>> tensors;
    uint32_t slice = 0;
    for (const Shard& shard : layout.shards()) {
      std::vector<std::byte> bytes;
      for (uint32_t s = 0; s < shard.slice_count; ++s, ++slice) {
        bytes.insert(bytes.end(), weights[slice].begin(), weights[slice].end());
      }
      std::vector<std::byte> buffer;
      const ByteSpan whole = RowMajor(shard.tensor, bytes, buffer);
      tensors[shard.tensor.name] = {whole.begin(), whole.end()};
    }
    return tensors;
  }
  // A local checkpoint of a reader, with what the trainer has now.
  std::string CopyBase(const std::string& name) {
    std::vector<safetensors::HeaderTensor> tensors;
    for (const Shard& shard : layout.shards()) {
      tensors.push_back({.name = shard.tensor.name,
                         .dtype = safetensors::FileDTypeOf(shard.tensor.dtype),
                         .shape = shard.tensor.shape});
    }
    const auto content = Checkpoint();
    const Status written = safetensors::WriteCheckpoint(
        files, temporary.File(name), std::move(tensors),
        [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
          return ByteSpan(content.at(tensor.name));
        },
        {});
    REQUIRE(written.ok());
    return temporary.File(name);
  }
  std::string Folder(uint64_t version) const {
    return dir.root + "/" + slime::VersionFolderName(version);
  }
  bool IsFull(uint64_t version) {
    const auto index = slime::ReadVersionIndex(files, Folder(version));
    REQUIRE(index.ok());
    return !index->delta.has_value();
  }
  std::vector<uint64_t> Versions() { return *slime::ListVersions(files, dir.root); }
  // Applies all versions there to `checkpoint`, and compares after each.
  void Follow(const std::string& checkpoint) {
    auto local = slime::LocalCheckpoint::Open(files, pool, checkpoint, {});
    REQUIRE(local.ok());
    for (const uint64_t version : Versions()) {
      if (version <= (*local)->version()) continue;
      CAPTURE(version);
      const auto report = (*local)->Apply(Folder(version));
      INFO(ToString(report.status()));
      REQUIRE(report.ok());
      for (const safetensors::CheckpointTensor& tensor : (*local)->checkpoint().tensors()) {
        CAPTURE(tensor.name);
        const std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
        REQUIRE(bytes == published.at(version).at(tensor.name));
      }
    }
  }

  TempFolder temporary;
  const RankLayout layout = WholeLayout();
  const DeltaLogLimits limits;
  std::mt19937_64 random{20240609};
  ThreadPool pool{1};
  PosixFileSystem files;
  Weights weights;
  SlimeDirOptions dir;
  RankStatePtr state;
  std::unique_ptr<SlimePublisher> publisher;
  std::map<uint64_t, std::map<std::string, std::vector<std::byte>>> published;
};

}  // namespace

TEST_CASE("a tensor's slices become its rows again, whichever dimension is cut", "[slime]") {
  const TensorSpec tensor{
      .name = "t", .dtype = DType::kU8, .shape = {2, 3, 2}, .cut_dim = 1, .cuts = {1}};
  // Its elements are numbered in row-major order; by slice they are these.
  const std::string slices("\x00\x01\x06\x07\x02\x03\x04\x05\x08\x09\x0a\x0b", 12);
  std::vector<std::byte> buffer;
  const ByteSpan rows = RowMajor(tensor, AsBytes(slices), buffer);
  REQUIRE(rows.size() == 12);
  for (uint8_t i = 0; i < 12; ++i) CHECK(rows[i] == std::byte{i});
}

TEST_CASE("versions applied by a reader are the trainer's weights, bit for bit", "[slime]") {
  const auto encoding = GENERATE(slime::Encoding::kXor, slime::Encoding::kOverwrite);
  const auto checksum = GENERATE(slime::ChecksumFormat::kXxh3, slime::ChecksumFormat::kBlake3,
                                 slime::ChecksumFormat::kAdler32);
  Publishing rank({.encoding = encoding, .checksum = checksum});
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  CHECK(rank.IsFull(1));
  REQUIRE(rank.Publish(2).ok());
  rank.Capture(3, 0.3);
  rank.Capture(4);
  REQUIRE(rank.Write().ok());  // two that are read from a snapshot that has moved on
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

TEST_CASE("a chain that cannot be continued begins anew with a full checkpoint", "[slime]") {
  Publishing rank({}, {.bytes_max = uint64_t{1} << 30, .versions_max = 2});
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  SECTION("when the log is over what was not written in time") {
    for (uint64_t version = 2; version <= 6; ++version) rank.Capture(version);
    REQUIRE(rank.Write().ok());
    CHECK(rank.Versions() == std::vector<uint64_t>{1, 6});
    CHECK(rank.IsFull(6));
    REQUIRE(rank.Publish(7).ok());
    CHECK_FALSE(rank.IsFull(7));
  }
  SECTION("when the trainer leaves a number out") {
    REQUIRE(rank.Publish(3).ok());
    REQUIRE(rank.Publish(4).ok());
    CHECK(rank.Versions() == std::vector<uint64_t>{1, 3, 4});
    CHECK(rank.IsFull(3));
    CHECK_FALSE(rank.IsFull(4));
  }
  rank.Follow(base);
}

TEST_CASE("damage in the sender's memory is never published", "[slime]") {
  Publishing rank;
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

TEST_CASE("a sender that starts again goes on in its own folder", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  REQUIRE(rank.Publish(1).ok());
  REQUIRE(rank.Publish(2).ok());
  // It died in the middle of the next.
  const std::filesystem::path half =
      std::filesystem::path(rank.Folder(3)).parent_path() / slime::UnfinishedFolderName(3);
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

  SECTION("and the one of before writes no more") {
    rank.Register(1, 1);
    rank.Restart();
    rank.Capture(5);
    CHECK_THAT(ToString(rank.Write()), Contains("another sender publishes there by now"));
  }
  SECTION("but not with numbers that are published already") {
    rank.Register(1, 3);
    rank.Capture(2);
    CHECK_THAT(ToString(rank.Write()), Contains("has version 4 already") && Contains("version 5"));
    REQUIRE(rank.Publish(5).ok());
    CHECK(rank.IsFull(5));
  }
}

TEST_CASE("a folder with versions of others is refused by name, and left as it is", "[slime]") {
  Publishing rank;
  const std::string base = rank.CopyBase("base");
  SECTION("of another run") {
    REQUIRE(rank.Publish(1).ok());
    rank.Register(2, 2);
    rank.Restart();
    CHECK_THAT(ToString(rank.Write()), Contains("FAILED_PRECONDITION") &&
                                           Contains("it has versions of stream 1:") &&
                                           Contains("empty the folder"));
    rank.Capture(1);
    CHECK_FALSE(rank.Write().ok());
    // `rm -r folder/weight_v*`: it is empty, and taken without a restart.
    std::filesystem::remove_all(rank.Folder(1));
    REQUIRE(rank.Write().ok());
  }
  SECTION("of a writer that says nothing of itself") {
    auto writer = slime::VersionWriter::Create(rank.files, rank.dir.root, {.version = 1});
    REQUIRE((*writer)->Finish().ok());
    CHECK_THAT(ToString(rank.Write()), Contains("weight_v000001 is of another writer"));
    std::filesystem::remove_all(rank.dir.root);
    REQUIRE(rank.Publish(1).ok());
  }
  SECTION("that is being written") {
    std::filesystem::create_directories(rank.Folder(7));
    CHECK_THAT(ToString(rank.Write()), Contains("somebody writes weight_v000007 there"));
    std::filesystem::remove_all(rank.dir.root);
    REQUIRE(rank.Publish(1).ok());
  }
  SECTION("that turn up later") {
    REQUIRE(rank.Publish(1).ok());
    std::filesystem::create_directories(rank.Folder(2));
    std::ofstream(rank.Folder(2) + "/model-00000.tmp") << "theirs";
    CHECK_THAT(ToString(rank.Publish(2)), Contains("weight_v000002 is there already"));
    CHECK(std::filesystem::exists(rank.Folder(2) + "/model-00000.tmp"));
    std::filesystem::remove_all(rank.Folder(2));
    REQUIRE(rank.Write().ok());
  }
  rank.Follow(base);
}

TEST_CASE("only whole tensors of a trainer of one rank are published", "[slime]") {
  TempFolder folder;
  PosixFileSystem files;
  SlimePublisher publisher({.dir = {.root = folder.File("versions")}}, files);
  const DeltaLogLimits limits{uint64_t{1} << 30, 64};
  SECTION("part of a tensor") {
    publisher.Offer(MakeState(
        MakeLayout({{.tensor = {.name = "a", .shape = {10}}},
                    {.tensor = {.name = "b", .shape = {10}, .cuts = {5}}, .first_slice = 1}}),
        limits));
    CHECK_THAT(ToString(publisher.Step().status()),
               Contains("FAILED_PRECONDITION") && Contains("slices 1 to 1 of 2 of tensor 'b'"));
  }
  SECTION("one rank of several") {
    RankState state = *MakeState(WholeLayout(), limits);
    state.world_size = 4;
    publisher.Offer(std::make_shared<const RankState>(std::move(state)));
    CHECK_THAT(ToString(publisher.Step().status()), Contains("one of 4 of its trainer"));
  }
  CHECK_FALSE(std::filesystem::exists(folder.File("versions")));
}

TEST_CASE("the newest deltas stay, and the newest full checkpoint before them", "[slime]") {
  Publishing rank({.keep = 2});
  for (uint64_t version = 1; version <= 4; ++version) REQUIRE(rank.Publish(version).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 3, 4});
  const std::string late = rank.CopyBase("late");
  REQUIRE(rank.Publish(6).ok());  // full
  REQUIRE(rank.Publish(7).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{1, 4, 6, 7});
  REQUIRE(rank.Publish(8).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{6, 7, 8});
  CHECK(rank.IsFull(6));
  rank.Follow(late);
  // Full checkpoints alone: one.
  for (const uint64_t version : {20, 30, 40}) REQUIRE(rank.Publish(version).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{6, 7, 8, 20, 30, 40});
  REQUIRE(rank.Publish(41).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{6, 8, 20, 30, 40, 41});
  REQUIRE(rank.Publish(42).ok());
  CHECK(rank.Versions() == std::vector<uint64_t>{40, 41, 42});
}

TEST_CASE("a full disk leaves no part of a version, and what failed is tried again", "[slime]") {
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

TEST_CASE("a publisher with its thread writes what it is offered, and says when it is done",
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
  CHECK(rank.publisher->view().trouble.ok());
  rank.publisher->Stop();
  rank.Follow(base);
}

}  // namespace dws
