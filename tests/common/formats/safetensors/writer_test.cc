#include "common/formats/safetensors/writer.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "common/formats/safetensors/checkpoint.h"
#include "tests/common/formats/raw_file.h"
#include "tests/common/formats/write_checkpoint.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws::safetensors {
namespace {

using Catch::Contains;
using dws::testing::Bytes;

// Random tensors of random dtypes and shapes, some without elements.
struct Model {
  explicit Model(uint64_t seed) {
    std::mt19937_64 random(seed);
    const size_t count = 1 + random() % 40;
    for (size_t i = 0; i < count; ++i) {
      HeaderTensor tensor{.name = fmt::format("layer.{}.ß{}", i % 7, i),
                          .dtype = static_cast<FileDType>(random() % kFileDTypeCount)};
      for (uint64_t rank = random() % 4; rank > 0; --rank) tensor.shape.push_back(random() % 9);
      tensor.shape.push_back(4);  // whole bytes for every dtype
      bytes[tensor.name] =
          dws::testing::RandomBytes(random, *TensorBytes(tensor.dtype, tensor.shape));
      tensors.push_back(tensor);
    }
  }
  TensorSource Source() {
    return [this](const HeaderTensor& tensor) -> Result<ByteSpan> { return bytes[tensor.name]; };
  }

  std::vector<HeaderTensor> tensors;
  std::map<std::string, Bytes> bytes;
};

void CheckSame(const Model& model, const std::string& folder) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder);
  INFO(checkpoint.status());
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->tensors().size() == model.tensors.size());
  for (const HeaderTensor& tensor : model.tensors) {
    const CheckpointTensor* const found = checkpoint->Find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == tensor.dtype);
    CHECK(found->shape == tensor.shape);
    const Bytes& bytes = model.bytes.at(tensor.name);
    CHECK(std::equal(bytes.begin(), bytes.end(), found->bytes.begin(), found->bytes.end()));
    CHECK(checkpoint->files()[found->file].metadata == Metadata{{"format", "pt"}});
  }
}

TEST_CASE("a written checkpoint of any layout reads back from one file and from many",
          "[safetensors]") {
  PosixFileSystem files;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    Model model(seed);
    const TempFolder folder;
    for (const uint64_t shard_bytes_max : {uint64_t{1} << 30, uint64_t{300}, uint64_t{0}}) {
      const std::string path = folder.File(fmt::format("ckpt{}/sub", shard_bytes_max));
      REQUIRE(WriteCheckpoint(files, path, model.tensors, model.Source(),
                              {.shard_bytes_max = shard_bytes_max})
                  .ok());
      CheckSame(model, path);
    }
  }
}

TEST_CASE("a source that gives the wrong size or fails leaves no file", "[safetensors]") {
  PosixFileSystem files;
  const TempFolder folder;
  const std::vector<HeaderTensor> tensors = {{.name = "a", .shape = {4}}};
  const TensorSource none = [](const HeaderTensor&) -> Result<ByteSpan> { return ByteSpan(); };
  const std::string path = folder.File("a.safetensors");
  CHECK_THAT(ToString(WriteTensorFile(files, path, {}, tensors, none)),
             Contains("its source gave 0 bytes, its shape has 4"));
  const TensorSource failing = [](const HeaderTensor&) -> Result<ByteSpan> {
    return AbortedError("gone");
  };
  CHECK(absl::IsAborted(WriteTensorFile(files, path, {}, tensors, failing)));
  CHECK(files.List(folder.path())->empty());
}

TEST_CASE("a disk that fails or loses power at any step leaves no file with missing tensors",
          "[safetensors]") {
  Model model(9);
  FaultFileSystem whole;
  REQUIRE(WriteTensorFile(whole, "/c", {}, model.tensors, model.Source()).ok());
  const int operations = whole.operation_count();
  REQUIRE(operations > 10);
  for (int n = 1; n <= operations; ++n) {
    INFO("operation " << n);
    FaultFileSystem disk;
    disk.FailOperation(n, ResourceExhaustedError("disk full"));
    CHECK(
        absl::IsResourceExhausted(WriteTensorFile(disk, "/c", {}, model.tensors, model.Source())));
    disk.LosePower();
    CHECK(disk.Content("/c").empty());
  }
  whole.LosePower();
  REQUIRE(ParseHeader(whole.Content("/c"), "/c").ok());
}

}  // namespace
}  // namespace dws::safetensors
