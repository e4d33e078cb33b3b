// Quantised views in slime's version folders: what readers have is the view, to the bit, and a
// folder keeps to one view.
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sender_daemon/slime/slime_sink.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tests/sender_daemon/slime/slime_publishing.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using Content = std::map<std::string, std::vector<std::byte>>;

constexpr const char* kView = "fp8-block128/deepseek";
constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 64};

// Tensors that recipes quantise, cut or not, and one that is unchanged.
RankLayout TrainerLayout() {
  return MakeLayout(
      {{.tensor = {.name = "a.weight", .dtype = DType::kBF16, .shape = {260, 512}}},
       {.tensor =
            {.name = "b.weight", .dtype = DType::kBF16, .shape = {300, 384}, .cuts = {{0, {128}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "c.weight", .dtype = DType::kBF16, .shape = {3, 130, 256}}},
       {.tensor = {.name = "n", .dtype = DType::kF32, .shape = {5'000}}},
       {.tensor = {.name = "o.gate_up_proj",
                   .dtype = DType::kBF16,
                   .shape = {3, 256, 300},
                   .cuts = {{0, {1}}, {2, {140}}}},
        .cells = {{0, 2}, {0, 2}}}});
}

Content TensorsOf(const RankState& state) {
  Content tensors;
  uint32_t slice = 0;
  for (const Shard& shard : state.layout().shards()) {
    std::vector<std::byte> bytes;
    for (uint32_t s = 0; s < CellCount(shard.cells); ++s, ++slice) {
      const ByteSpan of = state.snapshot->SliceBytes(RankSlice(slice));
      bytes.insert(bytes.end(), of.begin(), of.end());
    }
    std::vector<std::byte> buffer;
    const ByteSpan whole = RowMajor(shard.tensor, bytes, buffer);
    tensors[shard.tensor.name] = {whole.begin(), whole.end()};
  }
  return tensors;
}

// A trainer rank, a view of it, and the publisher of the view.
struct Viewing {
  explicit Viewing(const std::string& view_name, SlimeDirOptions options = {}) : name(view_name) {
    options.root = temporary.File("versions");
    options.view = view_name;
    dir = options;
    Begin(view_name);
  }
  // The sender starts: with this view of the stream.
  void Begin(const std::string& view_name) {
    name = view_name;
    dir.view = view_name;
    RankState made = *MakeState(layout, kNoLimits);
    made.rank_epoch = RankEpoch(++epochs);
    trainer = std::make_shared<const RankState>(std::move(made));
    auto begun = ViewSnapshot::Create(view_name, trainer, kNoLimits);
    REQUIRE(begun.ok());
    view = *std::move(begun);
    publisher =
        std::make_unique<SlimePublisher>(SlimePublisher::Options{.dir = dir, .base = base}, files);
  }
  void Capture(uint64_t version, double density = 0.01) {
    Perturb(weights, density, random);
    const CapturedVersion captured = CaptureAll(*trainer, pool, version, weights);
    view->state()->log->Append(
        Seal({.state = view->state(),
              .captured = view->CaptureVersion(WeightVersion(version), &captured, pool)}));
    published[version] = TensorsOf(*view->state());
  }
  Status Write() {
    publisher->Offer(view->state());
    while (true) {
      const Result<bool> more = publisher->Step();
      if (!more.ok()) return more.status();
      if (!*more) return OkStatus();
    }
  }
  // A checkpoint with the tensors of a state.
  std::string Checkpoint(const std::string& folder, const RankState& state) {
    std::vector<safetensors::HeaderTensor> tensors;
    for (const Shard& shard : state.layout().shards()) {
      tensors.push_back({.name = shard.tensor.name,
                         .dtype = safetensors::FileDTypeOf(shard.tensor.dtype),
                         .shape = shard.tensor.shape});
    }
    const Content content = TensorsOf(state);
    REQUIRE(safetensors::WriteCheckpoint(
                files, temporary.File(folder), std::move(tensors),
                [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
                  return ByteSpan(content.at(tensor.name));
                },
                {})
                .ok());
    return temporary.File(folder);
  }
  std::string Folder(uint64_t version) const {
    return dir.root + "/" + slime::VersionFolderName(version);
  }
  bool IsFull(uint64_t version) {
    const auto index = slime::ReadVersionIndex(files, Folder(version));
    REQUIRE(index.ok());
    return !index->delta.has_value();
  }
  void Follow(const std::string& checkpoint, const std::vector<uint64_t>& versions) {
    auto local = slime::LocalCheckpoint::Open(files, pool, checkpoint, {});
    REQUIRE(local.ok());
    for (const uint64_t version : versions) {
      CAPTURE(version);
      const auto report = (*local)->Apply(Folder(version));
      INFO(ToString(report.status()));
      REQUIRE(report.ok());
      REQUIRE((*local)->checkpoint().tensors().size() == published.at(version).size());
      for (const safetensors::CheckpointTensor& tensor : (*local)->checkpoint().tensors()) {
        CAPTURE(tensor.name);
        const std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
        REQUIRE(bytes == published.at(version).at(tensor.name));
      }
    }
  }

  TempFolder temporary;
  const RankLayout layout = TrainerLayout();
  std::mt19937_64 random{20260303};
  ThreadPool pool{1};
  PosixFileSystem files;
  Weights weights = RandomWeights(layout, random);
  std::string name;
  SlimeDirOptions dir;
  BaseCheckpoint base;
  uint64_t epochs = 0;
  RankStatePtr trainer;
  std::unique_ptr<ViewSnapshot> view;
  std::unique_ptr<SlimePublisher> publisher;
  std::map<uint64_t, Content> published;
};

}  // namespace

TEST_CASE("versions of a view applied by a reader are the view bit for bit", "[slime]") {
  for (const quantise::Recipe& recipe : quantise::AllRecipes()) {
    CAPTURE(recipe.id);
    const bool from_base = recipe.tile_rows > 1;
    Viewing rank(std::string(recipe.id), {.from_base = from_base, .threads = 2});
    // The checkpoint is of other weights than those that the trainer publishes first.
    const std::string reader = rank.Checkpoint("reader", *rank.view->state());
    rank.dir.checkpoint = rank.Checkpoint("base", *rank.view->state());
    rank.base = *ReadBaseCheckpoint(rank.files, rank.dir.checkpoint);
    rank.Begin(rank.name);
    rank.Capture(1);
    REQUIRE(rank.Write().ok());
    rank.Capture(2);
    rank.Capture(3, 0.5);
    REQUIRE(rank.Write().ok());  // two versions while the snapshot is newer
    rank.Capture(4, 0);
    REQUIRE(rank.Write().ok());
    CHECK(rank.IsFull(1) != from_base);
    for (const uint64_t version : {2, 3, 4}) CHECK_FALSE(rank.IsFull(version));
    rank.Follow(reader, {1, 2, 3, 4});
  }
}

TEST_CASE("a checkpoint of other types than the view's is refused by name", "[slime]") {
  Viewing rank(kView);
  std::string expected;
  SECTION("the trainer's own") {
    rank.dir.checkpoint = rank.Checkpoint("base", *rank.trainer);
    expected =
        "tensor 'a.weight' of --slime-checkpoint is BF16 [260, 512], and the view's is "
        "F8_E4M3 [260, 512]";
  }
  SECTION("one that leaves a tensor out") {
    rank.Begin(std::string(kView) + ",except=c.*");
    rank.dir.checkpoint = rank.Checkpoint("base", *rank.view->state());
    expected = "tensor 'c.weight' of --slime-checkpoint is BF16 [3, 130, 256]";
  }
  SECTION("one with a tensor that no recipe makes") {
    rank.dir.checkpoint = rank.Checkpoint("base", *rank.view->state());
    rank.base.tensors["a.input_scale"] = {};
    expected = "the view has no tensor 'a.input_scale'";
  }
  const auto read = ReadBaseCheckpoint(rank.files, rank.dir.checkpoint);
  REQUIRE(read.ok());
  rank.base.tensors.insert(read->tensors.begin(), read->tensors.end());
  rank.Begin(kView);
  // Before there is a version.
  CHECK_THAT(ToString(rank.Write()), Contains("FAILED_PRECONDITION") && Contains(expected));
  rank.Capture(1);
  CHECK_THAT(ToString(rank.Write()), Contains(expected));
  CHECK_FALSE(std::filesystem::exists(rank.Folder(1)));
}

TEST_CASE("a folder keeps to one view of its stream", "[slime]") {
  Viewing rank(kView);
  rank.Capture(1);
  REQUIRE(rank.Write().ok());
  SECTION("a restarted sender with the same one continues") {
    rank.Begin(kView);
    rank.Capture(2);
    REQUIRE(rank.Write().ok());
    CHECK(rank.IsFull(2));
    return;
  }
  SECTION("another one of the same names and types is refused") {
    rank.Begin("fp8-block128/deepseek-divide");
    rank.Capture(2);
    CHECK_THAT(ToString(rank.Write()),
               Contains("FAILED_PRECONDITION") &&
                   Contains("it has versions of this stream in another view"));
  }
  SECTION("so is the trainer's own form") {
    rank.dir.view = "";
    SlimePublisher own({.dir = rank.dir}, rank.files);
    own.Offer(rank.trainer);
    CHECK_THAT(ToString(own.Step().status()),
               Contains("it has versions of this stream in another view"));
  }
  CHECK_FALSE(std::filesystem::exists(rank.Folder(2)));
}

TEST_CASE("a place that is to have a view has nothing else, and says when it lacks it", "[slime]") {
  Viewing rank(kView);
  rank.dir.checkpoint = rank.Checkpoint("base", *rank.view->state());
  RankStatePtr made;  // the view, once there is one
  const auto opened = SlimeSink::Open(rank.dir, {.files = rank.files,
                                                 .view_state =
                                                     [&](const std::string& view) {
                                                       CHECK(view == kView);
                                                       return made;
                                                     },
                                                 .on_damage = nullptr});
  REQUIRE(opened.ok());
  VersionSink& sink = **opened;
  PublishAll(rank.trainer, rank.pool, 1, rank.weights);
  sink.Welcome(rank.trainer);
  CHECK_FALSE(sink.failure().has_value());
  sink.WelcomeViews(rank.trainer);
  REQUIRE(sink.failure().has_value());
  CHECK_THAT(sink.failure()->reason,
             Contains("view 'fp8-block128/deepseek' could not be made of the trainer's tensors"));
  v1::SenderStatus status;
  sink.FillStatus(status);
  CHECK(status.slime().failing() == sink.failure()->reason);
  made = rank.view->state();
  sink.Offer(rank.trainer);
  CHECK_FALSE(sink.failure().has_value());
  sink.Stop();
  CHECK_FALSE(std::filesystem::exists(rank.Folder(1)));  // the trainer's own tensors
}

}  // namespace dws
