// Faults seen in readers of slime's format. Each test runs a reader that has the fault, and ours.
//
// NaiveReader has these faults: it takes a version number as the identity of a version, takes the
// files in a folder as complete, and writes before it checks.
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using safetensors::Checkpoint;
using safetensors::kIndexFile;

class NaiveReader {
 public:
  explicit NaiveReader(std::string local) : local_(std::move(local)) {}

  // Makes the reader die after so many bytes of an xor.
  void DieAfter(uint64_t bytes) { bytes_left_ = bytes; }

  std::string Pull(const std::string& folder, uint64_t version) {
    if (version <= State()) return "already";
    const std::string result = Apply(folder + "/" + VersionFolderName(version));
    if (result == "applied") {
      dws::testing::WriteText(StatePath(), R"({"version": ")" + VersionText(version) + "\"}");
    }
    return result;
  }

 private:
  std::string StatePath() const { return local_ + "/.weight_sync/state.json"; }

  uint64_t State() const {
    std::ifstream file(StatePath());
    const nlohmann::json state = nlohmann::json::parse(file, nullptr, false);
    return state.is_object() ? *ParseVersionText(state["version"].get<std::string>()) : 0;
  }

  std::string Apply(const std::string& folder) {
    std::ifstream text(folder + "/" + kIndexFile);
    const nlohmann::json index = nlohmann::json::parse(text, nullptr, false);
    const bool delta = index.is_object() && index["metadata"].contains("delta_encoding");
    if (!delta) {  // so it is a full checkpoint
      for (const auto& item : fs::directory_iterator(local_)) {
        if (item.path().extension() == ".safetensors") fs::remove(item.path());
      }
      fs::remove(local_ + "/" + kIndexFile);
      fs::copy(folder, local_);
      return "applied";
    }
    for (const auto& item : fs::directory_iterator(folder)) {
      if (item.path().extension() != ".safetensors") continue;
      const std::string result = ApplyShard(item.path());
      if (result != "applied") return result;
    }
    return "applied";
  }

  std::string ApplyShard(const std::string& path) {
    const auto shard = Checkpoint::Open(path);
    const auto local = Checkpoint::Open(local_, FileAccess::kWritable);
    if (!shard.ok() || !local.ok()) return "unreadable";
    for (const auto& entry : shard->tensors()) {
      const MutableByteSpan tensor = local->Writable(*local->Find(entry.name));
      const auto payload = DecodeEntry(Encoding::kXor, entry.bytes, tensor.size());
      if (!payload.ok()) return "unreadable";
      for (size_t i = 0; i < tensor.size(); ++i) {
        if (bytes_left_ == 0) return "died";
        --bytes_left_;
        tensor[i] ^= (*payload)[i];
      }
      const std::string& expected = shard->files()[0].metadata.at(entry.name);
      if (ChecksumText(ChecksumFormat::kXxh3, tensor) != expected) return "checksum mismatch";
    }
    return "applied";
  }

  const std::string local_;
  uint64_t bytes_left_ = ~uint64_t{0};
};

// The same base in two local checkpoints, and versions for both.
struct Scene {
  Scene() {
    WriteBase(naive_folder, base);
    WriteBase(ours, base);
  }

  TempFolder folder;
  std::string naive_folder = folder.File("naive");
  std::string ours = folder.File("ours");
  std::string published = folder.File("published");
  Weights base = RandomWeights(1);
  NaiveReader naive{naive_folder};
};

TEST_CASE("a restarted trainer's version 1 is not taken for the old run's version 1",
          "[slime][regression]") {
  Scene scene;
  const Weights old_run = Next(scene.base, 2);
  const Weights new_run = Next(scene.base, 3);
  std::string first = Publish(scene.published, scene.base, old_run, {.version = 1});
  REQUIRE(scene.naive.Pull(scene.published, 1) == "applied");
  REQUIRE(ApplyOnce(scene.ours, first) == "applied");
  fs::remove_all(scene.published);
  first = Publish(scene.published, scene.base, new_run, {.version = 1});

  CHECK(scene.naive.Pull(scene.published, 1) == "already");
  CHECK(Load(scene.naive_folder) != new_run);  // although it reports that it has the version
  CHECK_THAT(ApplyOnce(scene.ours, first),
             Contains("FAILED_PRECONDITION") && Contains("another run"));
  CHECK(Load(scene.ours) == old_run);
}

TEST_CASE("a restarted trainer's version 2 is not applied to the old run's version 1",
          "[slime][regression]") {
  Scene scene;
  const Weights old_run = Next(scene.base, 2);
  const Weights new_run = Next(scene.base, 3);
  Weights second_state = new_run;  // changes one tensor, which is equal in both runs
  second_state["layer.0"][0] ^= std::byte{1};
  Weights old_agreeing = old_run;
  old_agreeing["layer.0"] = new_run.at("layer.0");
  REQUIRE(ApplyOnce(scene.ours, Publish(scene.published, scene.base, old_agreeing,
                                        {.version = 1})) == "applied");
  REQUIRE(scene.naive.Pull(scene.published, 1) == "applied");
  fs::remove_all(scene.published);
  Publish(scene.published, scene.base, new_run, {.version = 1});
  const std::string second = Publish(scene.published, new_run, second_state, {.version = 2});

  CHECK(scene.naive.Pull(scene.published, 2) == "applied");
  CHECK(Load(scene.naive_folder) != second_state);  // every checksum was right
  CHECK_THAT(ApplyOnce(scene.ours, second),
             Contains("FAILED_PRECONDITION") && Contains("another run"));
  // The refusal stays when the folder no longer has the version that proved it.
  fs::remove_all(scene.published + "/weight_v000001");
  CHECK_THAT(ApplyOnce(scene.ours, second), Contains("another run"));
  CHECK(Load(scene.ours) == old_agreeing);
}

TEST_CASE(
    "without any applied version left a delta of another run is refused by its tensors' digests",
    "[slime][regression]") {
  Scene scene;
  const Weights old_run = Next(scene.base, 2);
  const Weights new_run = Next(scene.base, 3);
  REQUIRE(ApplyOnce(scene.ours, Publish(scene.published, scene.base, old_run, {.version = 1})) ==
          "applied");
  fs::remove_all(scene.published);
  const std::string second = Publish(scene.published, new_run, Next(new_run, 4), {.version = 2});
  CHECK_THAT(ApplyOnce(scene.ours, second, {.proof = ProofRule::kNone}),
             Contains("FAILED_PRECONDITION") && Contains("layer.1"));
  CHECK(Load(scene.ours) == old_run);
}

TEST_CASE("two runs with equal versions are still told apart", "[slime][regression]") {
  Scene scene;
  const std::string old_folder = scene.folder.File("old");
  const auto old_run = PublishRun(old_folder, scene.base, {"layer.0", ""});
  const auto new_run = PublishRun(scene.published, scene.base, {"layer.1", "", "layer.2"});
  for (const uint64_t version : {1, 2}) {
    const std::string path = old_folder + "/" + VersionFolderName(version);
    REQUIRE(scene.naive.Pull(old_folder, version) == "applied");
    REQUIRE(ApplyOnce(scene.ours, path) == "applied");
  }
  const std::string third = scene.published + "/weight_v000003";
  const bool pruned = GENERATE(false, true);  // without its first version
  if (pruned) fs::remove_all(scene.published + "/weight_v000001");

  CHECK(scene.naive.Pull(scene.published, 3) == "applied");  // every checksum was right
  CHECK(Load(scene.naive_folder) != new_run[3]);
  CHECK_THAT(ApplyOnce(scene.ours, third),
             Contains("FAILED_PRECONDITION") && Contains("another run") &&
                 Contains(pruned ? "version 000002 was written again" : "version 000001 there"));
  // They are still told apart when the new run's first versions are gone.
  fs::remove_all(scene.published + "/weight_v000001");
  fs::remove_all(scene.published + "/weight_v000002");
  CHECK_THAT(ApplyOnce(scene.ours, third), Contains("another run"));
  CHECK(Load(scene.ours) == old_run[2]);

  WriteBase(scene.published + "/weight_v000004", new_run[3]);
  CHECK(ApplyOnce(scene.ours, scene.published + "/weight_v000004") == "applied");
  CHECK(Load(scene.ours) == new_run[3]);
}

TEST_CASE("an index that is visible before one of its shards is not applied in part",
          "[slime][regression]") {
  Scene scene;
  const Weights after = Next(scene.base, 2);
  const std::string version = Publish(scene.published, scene.base, after, {.version = 1});
  const std::string shard = version + "/late";
  PosixFileSystem files;
  const std::string name = (*files.List(version))[1];
  fs::rename(version + "/" + name, shard);

  CHECK(scene.naive.Pull(scene.published, 1) == "applied");  // without the shard
  CHECK(Load(scene.naive_folder) != after);
  CHECK_THAT(ApplyOnce(scene.ours, version), Contains("UNAVAILABLE") && Contains(name));
  CHECK(Load(scene.ours) == scene.base);
  fs::rename(shard, version + "/" + name);
  CHECK(ApplyOnce(scene.ours, version) == "applied");
  CHECK(Load(scene.ours) == after);
}

TEST_CASE("shards that are visible before the index are not taken for a full checkpoint",
          "[slime][regression]") {
  Scene scene;
  const Weights after = Next(scene.base, 2);
  const std::string version = Publish(scene.published, scene.base, after, {.version = 1});
  fs::rename(version + "/" + kIndexFile, version + "/late");

  CHECK(scene.naive.Pull(scene.published, 1) == "applied");
  CHECK_FALSE(Checkpoint::Open(scene.naive_folder).ok());  // the base is gone
  CHECK_THAT(ApplyOnce(scene.ours, version),
             Contains("UNAVAILABLE") && Contains("not published yet"));
  CHECK_THAT(ToString(Checkpoint::Open(version).status()), Contains("not published yet"));
  CHECK(Load(scene.ours) == scene.base);
  fs::rename(version + "/late", version + "/" + kIndexFile);
  CHECK(ApplyOnce(scene.ours, version) == "applied");
}

TEST_CASE("a process killed in the middle of an xor is recovered from", "[slime][regression]") {
  Scene scene;
  const Weights after = Next(scene.base, 2);
  const std::string version = Publish(scene.published, scene.base, after, {.version = 1});

  scene.naive.DieAfter(2000);
  CHECK(scene.naive.Pull(scene.published, 1) == "died");
  scene.naive.DieAfter(~uint64_t{0});
  for (int attempt = 0; attempt < 3; ++attempt) {
    CHECK(scene.naive.Pull(scene.published, 1) == "checksum mismatch");
  }
  REQUIRE(DiesAt("slime.apply.inside_tensor:kill@17", [&] { ApplyOnce(scene.ours, version); }));
  const Weights torn = Load(scene.ours);
  CHECK((torn != scene.base && torn != after));  // killed in the middle
  CHECK(ApplyOnce(scene.ours, version) == "already");
  CHECK(Load(scene.ours) == after);
}

TEST_CASE("a damaged byte in a tensor that no delta changes is found", "[slime][regression]") {
  Scene scene;
  REQUIRE(OpenOnce(scene.ours) == "version 0");
  for (const std::string& folder : {scene.naive_folder, scene.ours}) {
    const auto local = Checkpoint::Open(folder, FileAccess::kWritable);
    REQUIRE(local.ok());
    local->Writable(*local->Find("untouched"))[5] ^= std::byte{0x10};
  }
  const Weights after = Next(scene.base, 2);
  const std::string version = Publish(scene.published, scene.base, after, {.version = 1});

  CHECK(scene.naive.Pull(scene.published, 1) == "applied");
  CHECK(Load(scene.naive_folder) != after);
  const std::string result = ApplyOnce(scene.ours, version);
  CHECK_THAT(result, Contains("DATA_LOSS") && Contains(": untouched"));
  CHECK_THAT(OpenOnce(scene.ours), Contains("DATA_LOSS") && Contains(": untouched"));
  // A full checkpoint repairs it.
  const std::string full = scene.published + "/weight_v000002";
  WriteBase(full, after);
  CHECK(ApplyOnce(scene.ours, full, {.verify_all = false}) == "applied");
  CHECK(OpenOnce(scene.ours) == "version 2");
  CHECK(Load(scene.ours) == after);
}

TEST_CASE("one tensor in two shards is refused before anything is applied", "[slime][regression]") {
  Scene scene;
  const Weights after = Next(scene.base, 2);
  const std::string version = Publish(scene.published, scene.base, after, {.version = 1});
  // The first shard's tensor is also in another file.
  PosixFileSystem files;
  const std::string first = (*files.List(version))[0];
  fs::copy(version + "/" + first, version + "/again.safetensors");

  CHECK(scene.naive.Pull(scene.published, 1) == "checksum mismatch");
  CHECK(Load(scene.naive_folder) != scene.base);  // already written to
  CHECK_THAT(ApplyOnce(scene.ours, version),
             Contains("DATA_LOSS") && Contains("again.safetensors"));
  // The index names both files: one shard has the content of another.
  fs::remove(version + "/again.safetensors");
  fs::copy_file(version + "/" + first, version + "/" + (*files.List(version))[1],
                fs::copy_options::overwrite_existing);
  CHECK_THAT(ApplyOnce(scene.ours, version), Contains("DATA_LOSS") && Contains("in two files"));
  CHECK(Load(scene.ours) == scene.base);
}

TEST_CASE("positions above 32 bits are refused and do not wrap around", "[slime][regression]") {
  constexpr uint64_t kSize = (uint64_t{1} << 32) + 8;
  // A writer that converts positions to u32 moves a change above 4 GiB to the start.
  CHECK(static_cast<uint32_t>((uint64_t{1} << 32) + 3) == 3);

  void* const zeros =
      ::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(zeros != MAP_FAILED);
  const ByteSpan large(static_cast<const std::byte*>(zeros), kSize);
  CHECK_THAT(ToString(EncodePayload(Encoding::kOverwrite, large, large).status()),
             Contains("cannot carry a tensor of 4294967304 bytes: use xor"));
  CHECK_THAT(ToString(DecodeEntry(Encoding::kOverwrite, CompressEntry(Bytes(4)), kSize).status()),
             Contains("INVALID_ARGUMENT"));
  ::munmap(zeros, kSize);
}

}  // namespace
}  // namespace dws::slime
