// Versions of a trainer with several ranks: each sender writes its part, rank 0's joins them. Every
// rank is a publisher of its own; they share nothing but the file system.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/slime_delta/version_folder.h"
#include "sender_daemon/slime/part_request.h"
#include "sender_daemon/slime/slime_publisher.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/sender_daemon/slime/slime_publishing.h"

namespace dws {
namespace {

using Catch::Contains;
using Content = std::map<std::string, std::vector<std::byte>>;

constexpr const char* kRoot = "/versions";

// Rank 0 has rows and an empty tensor, the others a tensor in slices each.
RankLayout LayoutOf(uint32_t rank) {
  std::vector<Shard> shards = {
      {.tensor = {.name = fmt::format("layer.{}.w", rank), .shape = {30, 101}, .cuts = {{0, {10}}}},
       .cells = {{0, 2}}}};
  if (rank == 0) shards.push_back({.tensor = {.name = "z.empty", .shape = {0, 5}}});
  return MakeLayout(std::move(shards));
}

// The process of a trainer rank's sender.
struct Rank {
  Rank(FileSystem& files, SlimePublisher::Options options, uint32_t number, uint32_t world_size,
       uint64_t epoch, std::mt19937_64& random)
      : layout(LayoutOf(number)),
        weights(RandomWeights(layout, random)),
        publisher(std::make_unique<SlimePublisher>(std::move(options), files)) {
    RankState made = *MakeState(layout, {uint64_t{1} << 30, 64});
    made.trainer_rank = TrainerRank(number);
    made.world_size = world_size;
    made.rank_epoch = RankEpoch(epoch);
    state = std::make_shared<const RankState>(std::move(made));
  }
  RankLayout layout;
  Weights weights;
  RankStatePtr state;
  std::unique_ptr<SlimePublisher> publisher;
};

struct Ranks {
  explicit Ranks(uint32_t count = 3, SlimeDirOptions dir = {}) {
    dir.root = kRoot;
    options = {.dir = dir, .part_wait_max = std::chrono::hours(1)};
    for (uint32_t rank = 0; rank < count; ++rank) Start(rank, count);
  }
  void Start(uint32_t rank, uint32_t world_size) {
    Weights held;
    if (rank < ranks.size()) held = ranks[rank]->weights;
    ranks.resize(std::max<size_t>(ranks.size(), rank + 1));
    ranks[rank] = std::make_unique<Rank>(files, options, rank, world_size, ++epochs, random);
    if (!held.empty()) ranks[rank]->weights = held;
  }
  // The sender of that rank has died, and the trainer registers with a new one.
  void Restart(uint32_t rank) { Start(rank, static_cast<uint32_t>(ranks.size())); }

  // All ranks publish a version; `still` are ranks whose weights do not change.
  void Capture(uint64_t version, const std::vector<uint32_t>& still = {}) {
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      if (std::find(still.begin(), still.end(), rank) == still.end()) {
        Perturb(ranks[rank]->weights, 0.01, random);
      }
      PublishAll(ranks[rank]->state, pool, version, ranks[rank]->weights);
      ranks[rank]->publisher->Offer(ranks[rank]->state);
    }
    published[version] = Whole();
  }
  // The weights of all ranks, by tensor.
  Content Whole() const {
    Content content;
    for (const auto& rank : ranks) {
      uint32_t slice = 0;
      for (const Shard& shard : rank->layout.shards()) {
        std::vector<std::byte>& bytes = content[shard.tensor.name];
        for (uint32_t s = 0; s < CellCount(shard.cells); ++s, ++slice) {
          bytes.insert(bytes.end(), rank->weights[slice].begin(), rank->weights[slice].end());
        }
      }
    }
    return content;
  }
  // One round of each of these ranks, in turn, until none has anything to do. Returns the first
  // error with its rank.
  std::optional<std::pair<uint32_t, Status>> Run(std::vector<uint32_t> who = {}) {
    if (who.empty()) {
      for (uint32_t rank = 0; rank < ranks.size(); ++rank) who.push_back(rank);
    }
    // A request, an answer and a version are a round each; the last rounds change nothing.
    for (int idle = 0, rounds = 0; idle < 3; ++rounds) {
      REQUIRE(rounds < 60);
      ++idle;
      for (const uint32_t rank : who) {
        const int before = files.operation_count();
        const Result<bool> more = ranks[rank]->publisher->Step();
        if (!more.ok()) return std::pair(rank, more.status());
        if (*more || files.operation_count() != before) idle = 0;
      }
    }
    return std::nullopt;
  }
  std::vector<uint64_t> Versions() { return *slime::ListVersions(files, kRoot); }
  bool IsFull(uint64_t version) {
    const auto index =
        slime::ReadVersionIndex(files, kRoot + ("/" + slime::VersionFolderName(version)));
    REQUIRE(index.ok());
    return !index->delta.has_value();
  }
  // Readers bring a copy of the base up to each version in the folder, and every version must be
  // what all ranks published.
  void Follow() {
    TempFolder folder;
    for (const uint64_t version : Versions()) {
      const std::string name = slime::VersionFolderName(version);
      std::filesystem::create_directories(folder.File("versions/" + name));
      const std::vector<std::string> names = *files.List(kRoot + ("/" + name));
      for (const std::string& file : names) {
        const auto content = files.Content(kRoot + ("/" + name + "/" + file));
        std::ofstream(folder.File("versions/" + name + "/" + file), std::ios::binary)
            .write(reinterpret_cast<const char*>(content.data()),
                   static_cast<std::streamsize>(content.size()));
      }
    }
    PosixFileSystem disk;
    WriteBase(disk, folder.File("local"));
    auto local = slime::LocalCheckpoint::Open(disk, pool, folder.File("local"), {});
    REQUIRE(local.ok());
    for (const uint64_t version : Versions()) {
      CAPTURE(version);
      const auto report =
          (*local)->Apply(folder.File("versions/" + slime::VersionFolderName(version)));
      INFO(ToString(report.status()));
      REQUIRE(report.ok());
      for (const safetensors::CheckpointTensor& tensor : (*local)->checkpoint().tensors()) {
        CAPTURE(tensor.name);
        const std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
        REQUIRE(bytes == published.at(version).at(tensor.name));
      }
    }
  }
  void WriteBase(FileSystem& to, const std::string& path) const {
    std::vector<safetensors::HeaderTensor> tensors;
    for (const auto& rank : ranks) {
      for (const Shard& shard : rank->layout.shards()) {
        tensors.push_back({.name = shard.tensor.name,
                           .dtype = safetensors::FileDTypeOf(shard.tensor.dtype),
                           .shape = shard.tensor.shape});
      }
    }
    std::vector<std::byte> zeros(1 << 20);
    REQUIRE(safetensors::WriteCheckpoint(
                to, path, std::move(tensors),
                [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
                  return ByteSpan(zeros).first(tensor.size_bytes());
                },
                {})
                .ok());
  }
  std::vector<std::string> Hidden() {
    std::vector<std::string> hidden;
    const std::vector<std::string> names = *files.List(kRoot);
    for (const std::string& name : names) {
      if (name.starts_with(".weight")) hidden.push_back(name);
    }
    return hidden;
  }

  std::mt19937_64 random{20260101};
  ThreadPool pool{0};
  FaultFileSystem files;
  SlimePublisher::Options options;
  uint64_t epochs = 0;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::map<uint64_t, Content> published;
};

TEST_CASE("versions joined from the parts of all ranks equal the weights of all", "[slime]") {
  for (const auto encoding : {slime::Encoding::kXor, slime::Encoding::kOverwrite}) {
    Ranks all(3, {.encoding = encoding, .checksum = slime::ChecksumFormat::kAdler32});
    all.options.base.side_files["config.json"] = {std::byte{'{'}, std::byte{'}'}};
    all.Restart(0);
    for (uint64_t version = 1; version <= 4; ++version) {
      all.Capture(version, version == 3 ? std::vector<uint32_t>{0, 2} : std::vector<uint32_t>{});
      REQUIRE_FALSE(all.Run().has_value());
      CHECK(all.Versions().back() == version);
      CHECK(all.IsFull(version) == (version == 1));
      CHECK(all.Hidden().empty());
      for (const auto& rank : all.ranks) CHECK(rank->publisher->view().newest->value() == version);
    }
    all.Follow();
    const auto full = *all.files.List("/versions/weight_v000001");
    CHECK(full == std::vector<std::string>{"config.json", "model-00000-of-00003.safetensors",
                                           "model-00001-of-00003.safetensors",
                                           "model-00002-of-00003.safetensors",
                                           "model.safetensors.index.json"});
    const auto delta = *all.files.List("/versions/weight_v000003");
    CHECK(delta == std::vector<std::string>{"model-00000-of-00001.safetensors",
                                            "model.safetensors.index.json"});
    CHECK(all.ranks[1]->publisher->view().versions == 4);
    CHECK(all.ranks[1]->publisher->view().fulls == 1);
  }
}

TEST_CASE("readers see nothing of a version until the last rank has written its part", "[slime]") {
  Ranks all;
  all.Capture(1);
  REQUIRE_FALSE(all.Run({0, 1}).has_value());
  CHECK(all.Versions().empty());
  REQUIRE_FALSE(all.Run().has_value());
  CHECK(all.Versions() == std::vector<uint64_t>{1});
  all.Capture(2);
  REQUIRE_FALSE(all.Run({0, 1}).has_value());
  all.Capture(3);  // the third rank is two versions behind
  REQUIRE_FALSE(all.Run({0, 1}).has_value());
  CHECK(all.Versions() == std::vector<uint64_t>{1});
  REQUIRE_FALSE(all.Run().has_value());
  CHECK(all.Versions() == std::vector<uint64_t>{1, 2, 3});
  CHECK_FALSE(all.IsFull(2));
  all.Follow();
}

TEST_CASE("a rank that is missing for too long is named, and the version waits for it", "[slime]") {
  Ranks all;
  all.options.part_wait_max = std::chrono::milliseconds(0);
  for (uint32_t rank = 0; rank < 3; ++rank) all.Restart(rank);
  all.Capture(1);
  const auto missing = all.Run({0});
  REQUIRE(missing.has_value());
  CHECK_THAT(ToString(missing->second),
             Contains("UNAVAILABLE") && Contains("version 1 waits for the parts of 2 of 3 ranks") &&
                 Contains("1, 2:"));
  const auto unpublished = all.Run({1, 2});
  REQUIRE(unpublished.has_value());
  CHECK(all.Versions().empty());
  for (int round = 0; round < 4; ++round) {
    for (const auto& rank : all.ranks) (void)rank->publisher->Step();
  }
  CHECK(all.Versions() == std::vector<uint64_t>{1});
  REQUIRE_FALSE(all.Run().has_value());

  // Without rank 0 the others say what is missing.
  all.Capture(2);
  const auto alone = all.Run({2});
  REQUIRE(alone.has_value());
  CHECK_THAT(ToString(alone->second),
             Contains("version 2 is not there") && Contains("has published version 1"));
}

TEST_CASE("a rank whose sender was restarted has the next version be full", "[slime]") {
  for (const uint32_t restarted : {0U, 2U}) {
    CAPTURE(restarted);
    Ranks all;
    all.Capture(1);
    REQUIRE_FALSE(all.Run().has_value());
    all.Capture(2);
    REQUIRE_FALSE(all.Run({0, 1}).has_value());  // asked for, not complete
    all.Restart(restarted);
    all.Capture(3);
    REQUIRE_FALSE(all.Run().has_value());
    CHECK(all.Versions() == std::vector<uint64_t>{1, 3});
    CHECK(all.IsFull(3));
    all.Capture(4);
    REQUIRE_FALSE(all.Run().has_value());
    CHECK_FALSE(all.IsFull(4));
    all.Follow();
  }
}

// `die`: what happens to the processes at the failed operation.
void FailEach(const std::function<void(Ranks&, uint32_t failed)>& die) {
  int operation = 0;
  for (bool failed = true; failed;) {
    CAPTURE(++operation);
    Ranks all;
    all.Capture(1);
    REQUIRE_FALSE(all.Run().has_value());
    all.files.FailOperation(operation, ResourceExhaustedError("no space left"));
    all.Capture(2);
    const auto first = all.Run();
    failed = first.has_value();
    all.files.FailOperation(0, OkStatus());
    if (failed) die(all, first->first);
    all.Follow();  // whatever is there is whole
    all.Capture(3);
    REQUIRE_FALSE(all.Run().has_value());
    all.Follow();
    CHECK(all.Versions().back() == 3);
    CHECK(all.Hidden().empty());
  }
  CHECK(operation > 20);
}

TEST_CASE("a version is whole or not there whichever operation of a rank fails", "[slime]") {
  FailEach([](Ranks& all, uint32_t) {
    CHECK(all.Versions().size() <= 2);
    REQUIRE_FALSE(all.Run().has_value());
    CHECK(all.Versions() == std::vector<uint64_t>{1, 2});
    CHECK_FALSE(all.IsFull(2));
  });
}

TEST_CASE("a version is whole or not there whenever a rank's sender dies", "[slime]") {
  FailEach([](Ranks& all, uint32_t failed) { all.Restart(failed); });
}

TEST_CASE("a version is whole or not there whenever all machines lose power", "[slime]") {
  FailEach([](Ranks& all, uint32_t) {
    for (uint32_t rank = 0; rank < 3; ++rank) all.Restart(rank);
    all.files.LosePower();
  });
}

TEST_CASE("ranks that do not fit each other are refused by name", "[slime]") {
  Ranks all(2);
  SECTION("two ranks have the same tensor") {
    Rank& second = *all.ranks[1];
    RankState made = *MakeState(LayoutOf(0), {uint64_t{1} << 30, 64});
    made.trainer_rank = TrainerRank(1);
    made.world_size = 2;
    second.layout = LayoutOf(0);
    second.weights = RandomWeights(second.layout, all.random);
    second.state = std::make_shared<const RankState>(std::move(made));
    all.Capture(1);
    const auto refused = all.Run();
    REQUIRE(refused.has_value());
    CHECK(refused->first == 0);
    CHECK_THAT(ToString(refused->second), Contains("tensor 'layer.0.w' is in two parts"));
    // It is not written again until the ranks register again.
    const int before = all.files.operation_count();
    CHECK_FALSE(all.ranks[0]->publisher->Step().ok());
    CHECK(all.files.operation_count() == before);
  }
  SECTION("no rank has a tensor of the base checkpoint") {
    for (const char* name : {"layer.0.w", "layer.1.w", "other"})
      all.options.base.tensors[name] = {};
    all.Restart(0);
    all.Capture(1);
    const auto refused = all.Run();
    REQUIRE(refused.has_value());
    CHECK_THAT(ToString(refused->second), Contains("has not registered tensor 'other'"));
  }
  SECTION("the ranks' senders have different options") {
    all.options.dir.encoding = slime::Encoding::kOverwrite;
    all.Restart(1);
    all.Capture(1);
    const auto refused = all.Run();
    REQUIRE(refused.has_value());
    CHECK(refused->first == 1);
    CHECK_THAT(ToString(refused->second), Contains("rank 0 asks for parts as xor") &&
                                              Contains("this sender is to write overwrite"));
  }
  CHECK(all.Versions().empty());
}

TEST_CASE("a request reads as it was written and a damaged one is refused", "[slime]") {
  const PartRequest request{.stream = "7:00ff",
                            .epoch = 3,
                            .attempt = 12,
                            .world_size = 4,
                            .version = 9,
                            .kind = PartKind::kBase,
                            .encoding = slime::Encoding::kOverwrite,
                            .checksum = slime::ChecksumFormat::kBlake3,
                            .published = 8};
  const std::string text = MakePartRequest(request);
  CHECK(text == "7:00ff 3 12 4 9 base overwrite blake3 8\n");
  CHECK(*ParsePartRequest(text, "it") == request);
  for (size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    CHECK(absl::IsDataLoss(ParsePartRequest(text.substr(0, size), "it").status()));
  }
  for (const char* const wrong :
       {"7:00ff 3 12 4 9 most overwrite blake3 8\n", "7:00ff 3 12 4 9 base other blake3 8\n",
        "7:00ff 3 12 4 9 base overwrite md5 8\n", "7:00ff -3 12 4 9 base overwrite blake3 8\n",
        "7:00ff 3 12 4 9 base overwrite blake3 8 8\n",
        "7:00ff 3 12 4 9 base overwrite blake3 \n"}) {
    CAPTURE(wrong);
    CHECK(absl::IsDataLoss(ParsePartRequest(wrong, "it").status()));
  }
  const std::string folder = ".weight_v000009.7-00ff-3-a12-r2-e5.new";
  CHECK(slime::UnfinishedFolderName(9, PartWriterName(request, 2, 5)) == folder);
  const auto owner = ParsePartFolder(request, folder);
  REQUIRE(owner.has_value());
  CHECK((owner->rank == 2 && owner->epoch == 5));
  for (const char* const other :
       {".weight_v000009.7-00ff-3-a11-r2-e5.new", ".weight_v000008.7-00ff-3-a12-r2-e5.new",
        ".weight_v000009.7-00ff-3-a12-r2-e5.new.gone", ".weight_v000009.7-00ff-3-a12-r02-e5.new",
        ".weight_v000009.7-00ff-3.new", "weight_v000009", ".dws_request", ""}) {
    CAPTURE(other);
    CHECK_FALSE(ParsePartFolder(request, other).has_value());
  }
}

}  // namespace
}  // namespace dws
