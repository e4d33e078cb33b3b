// Fixture for tests of slime's versions: a trainer rank with whole tensors, its publisher, and our
// reader, which follows the versions.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/apply.h"
#include "common/formats/slime_delta/version_writer.h"
#include "sender_daemon/slime/slime_publisher.h"
#include "sender_daemon/slime/tensor_reader.h"
#include "tests/common/formats/write_checkpoint.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

// Tensors that are whole, cut into rows, cut across rows, cut on two dimensions, empty and scalar;
// two blocks and more.
inline RankLayout WholeLayout() {
  return MakeLayout(
      {{.tensor = {.name = "across", .shape = {3, 40, 1000}, .cuts = {{1, {7, 20}}}},
        .cells = {{0, 3}}},
       {.tensor = {.name = "bytes", .dtype = DType::kF8E4M3, .shape = {70'001}}},
       {.tensor = {.name = "empty", .dtype = DType::kF32, .shape = {0, 5}}},
       {.tensor = {.name = "grid", .shape = {50, 31, 90}, .cuts = {{0, {7, 20}}, {2, {31}}}},
        .cells = {{0, 3}, {0, 2}}},
       {.tensor = {.name = "rows", .shape = {300, 1001}, .cuts = {{0, {100}}}}, .cells = {{0, 2}}},
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
  // A trainer registers: a new stream, or the old one after a restart of the sender.
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

  // The current weights as in a checkpoint: by tensor, row-major.
  std::map<std::string, std::vector<std::byte>> Checkpoint() const {
    std::map<std::string, std::vector<std::byte>> tensors;
    uint32_t slice = 0;
    for (const Shard& shard : layout.shards()) {
      std::vector<std::byte> bytes;
      for (uint32_t s = 0; s < CellCount(shard.cells); ++s, ++slice) {
        bytes.insert(bytes.end(), weights[slice].begin(), weights[slice].end());
      }
      std::vector<std::byte> buffer;
      const ByteSpan whole = RowMajor(shard.tensor, bytes, buffer);
      tensors[shard.tensor.name] = {whole.begin(), whole.end()};
    }
    return tensors;
  }
  // A reader's local checkpoint with the trainer's current weights.
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
  // Applies all versions in the folder to `checkpoint`, and compares after each.
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

}  // namespace dws
