// copy_checkpoint FROM TO SHARD_BYTES: reads a checkpoint and writes it again, for
// official_test.py.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "common/formats/safetensors/checkpoint.h"
#include "tests/common/formats/write_checkpoint.h"

namespace dws::safetensors {
namespace {

Status Copy(const std::string& from, const std::string& to, uint64_t shard_bytes_max) {
  DWS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(from));
  std::vector<HeaderTensor> tensors;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  PosixFileSystem files;
  const TensorSource source = [&](const HeaderTensor& tensor) -> Result<ByteSpan> {
    return checkpoint.Find(tensor.name)->bytes;
  };
  return WriteCheckpoint(files, to, std::move(tensors), source,
                         {.shard_bytes_max = shard_bytes_max});
}

}  // namespace
}  // namespace dws::safetensors

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: copy_checkpoint FROM TO SHARD_BYTES\n");
    return 2;
  }
  const dws::Status copied =
      dws::safetensors::Copy(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  if (copied.ok()) return 0;
  fmt::print(stderr, "{}\n", dws::ToString(copied));
  return 1;
}
