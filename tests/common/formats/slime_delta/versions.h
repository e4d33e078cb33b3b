// Weights, checkpoints of them and version folders between them, for tests of slime's formats.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/apply.h"
#include "common/formats/slime_delta/version_writer.h"
#include "tests/common/formats/raw_file.h"
#include "tests/common/formats/write_checkpoint.h"

namespace dws::slime {

using dws::testing::Bytes;
using Weights = std::map<std::string, Bytes>;

// A few tensors of BF16; Next never changes the one named "untouched".
inline Weights RandomWeights(uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (int i = 0; i < 9; ++i) {
    weights["layer." + std::to_string(i)] = dws::testing::RandomBytes(random, 2 * (100 + 337 * i));
  }
  weights["scale"] = dws::testing::RandomBytes(random, 2);
  weights["untouched"] = dws::testing::RandomBytes(random, 600);
  return weights;
}

// `weights` after a step: 3 bytes in 100 are changed in every tensor but "untouched".
inline Weights Next(const Weights& weights, uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights next = weights;
  for (auto& [name, bytes] : next) {
    if (name == "untouched") continue;
    for (std::byte& byte : bytes) {
      if (random() % 100 < 3) byte ^= std::byte(1 + random() % 255);
    }
    bytes.back() ^= std::byte{1};
  }
  return next;
}

inline std::vector<safetensors::HeaderTensor> TensorsOf(const Weights& weights) {
  std::vector<safetensors::HeaderTensor> tensors;
  for (const auto& [name, bytes] : weights) {
    tensors.push_back(
        {.name = name, .dtype = safetensors::FileDType::kBF16, .shape = {bytes.size() / 2}});
  }
  return tensors;
}

// A checkpoint of two files and their index.
inline void WriteBase(const std::string& folder, const Weights& weights) {
  PosixFileSystem files;
  const Status written = safetensors::WriteCheckpoint(
      files, folder, TensorsOf(weights),
      [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
        return ByteSpan(weights.at(tensor.name));
      },
      {.shard_bytes_max = 9000});
  INFO(written);
  REQUIRE(written.ok());
}

// Writes the version from `before` to `after` into `folder`, in several shards; returns its path.
inline std::string Publish(const std::string& folder, const Weights& before, const Weights& after,
                           VersionWriteOptions options) {
  PosixFileSystem files;
  options.shard_bytes_max = std::min<uint64_t>(options.shard_bytes_max, 300);
  auto writer = VersionWriter::Create(files, folder, options);
  INFO(writer.status());
  REQUIRE(writer.ok());
  for (const auto& [name, bytes] : after)
    REQUIRE((*writer)->Add(name, before.at(name), bytes).ok());
  const auto finished = (*writer)->Finish();
  INFO(finished.status());
  REQUIRE(finished.ok());
  return folder + "/" + VersionFolderName(options.version);
}

// `weights` with one byte of tensor `name` changed; unchanged when `name` is empty.
inline Weights Touched(Weights weights, const std::string& name) {
  if (!name.empty()) weights.at(name)[0] ^= std::byte{0x55};
  return weights;
}

// Publishes a trainer's run from `base`: version i + 1 changes the tensor touches[i], or nothing if
// that is "". Returns the base's weights and then those after each version.
inline std::vector<Weights> PublishRun(const std::string& folder, const Weights& base,
                                       const std::vector<std::string>& touches) {
  std::vector<Weights> states = {base};
  for (const std::string& name : touches) {
    states.push_back(Touched(states.back(), name));
    Publish(folder, states[states.size() - 2], states.back(), {.version = states.size() - 1});
  }
  return states;
}

inline Weights Load(const std::string& folder) {
  const auto checkpoint = safetensors::Checkpoint::Open(folder);
  INFO(checkpoint.status());
  REQUIRE(checkpoint.ok());
  Weights weights;
  for (const auto& tensor : checkpoint->tensors()) {
    weights[tensor.name] = Bytes(tensor.bytes.begin(), tensor.bytes.end());
  }
  return weights;
}

// Opens the local checkpoint and applies a version. Returns "applied", "already" or the error.
inline std::string ApplyOnce(const std::string& local, const std::string& version_folder,
                             const ApplyOptions& options = {}) {
  PosixFileSystem files;
  ThreadPool pool(2);
  const auto opened = LocalCheckpoint::Open(files, pool, local, options);
  if (!opened.ok()) return ToString(opened.status());
  const auto report = (*opened)->Apply(version_folder);
  if (!report.ok()) return ToString(report.status());
  return report->applied ? "applied" : "already";
}

// Opens the local checkpoint; returns "version 2", for example, or the error.
inline std::string OpenOnce(const std::string& local, const ApplyOptions& options = {}) {
  PosixFileSystem files;
  ThreadPool pool(2);
  const auto opened = LocalCheckpoint::Open(files, pool, local, options);
  if (!opened.ok()) return ToString(opened.status());
  return "version " + std::to_string((*opened)->version());
}

// Runs `work` in a child process with `failpoint` armed ("slime.apply.after_write:kill"). Returns
// whether the failpoint killed it.
template <typename Work>
bool DiesAt(const std::string& failpoint, Work&& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("DWS_FAILPOINT", failpoint.c_str(), 1);
    work();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace dws::slime
