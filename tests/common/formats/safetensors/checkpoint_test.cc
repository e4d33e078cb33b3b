#include "common/formats/safetensors/checkpoint.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>

#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/common/formats/raw_file.h"
#include "tests/fakes/temp_folder.h"

namespace dws::safetensors {
namespace {

using Catch::Contains;
using dws::testing::Bytes;
using dws::testing::RawFile;
using dws::testing::ReadFile;
using dws::testing::WriteFile;
using dws::testing::WriteText;

// A file with U8 tensors of these names and of `size` bytes each.
Bytes FileOf(const std::vector<std::string>& names, uint64_t size = 3) {
  std::string json;
  for (size_t i = 0; i < names.size(); ++i) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                        i == 0 ? "" : ",", names[i], size, i * size, (i + 1) * size);
  }
  return RawFile("{" + json + "}", names.size() * size);
}

std::string Index(const std::string& weight_map) {
  return R"({"metadata":{"total_size":6,"note":"x"},"weight_map":)" + weight_map + "}";
}

std::string Refusal(const std::string& path) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? "accepted" : ToString(checkpoint.status());
}

TEST_CASE("a single file is a checkpoint", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("x.bin"), FileOf({"b", "a"}));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.File("x.bin"));
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->tensors().size() == 2);
  CHECK(checkpoint->tensors()[0].name == "a");
  REQUIRE(checkpoint->Find("b") != nullptr);
  CHECK(checkpoint->Find("b")->bytes[2] == std::byte{2});
  CHECK(checkpoint->Find("c") == nullptr);
  CHECK(checkpoint->files()[0].name == "x.bin");
  CHECK(checkpoint->tensor_bytes() == 6);
}

TEST_CASE("a folder with an index is read by its index whatever other files it has",
          "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("one.safetensors"), FileOf({"a"}));
  WriteFile(folder.File("two.safetensors"), FileOf({"b"}));
  WriteFile(folder.File("consolidated.safetensors"), FileOf({"a", "b"}));
  WriteText(folder.File(kIndexFile), Index(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->files().size() == 2);
  CHECK(checkpoint->files()[checkpoint->Find("b")->file].name == "two.safetensors");
}

TEST_CASE("an index of another name decides where it is the only one", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("one.safetensors"), FileOf({"a"}));
  WriteFile(folder.File("leftover.safetensors"), FileOf({"a", "b"}));
  WriteText(folder.File("x.safetensors.index.json"), Index(R"({"a":"one.safetensors"})"));
  WriteText(folder.File(".x.safetensors.index.json"), "hidden: half written");
  WriteText(folder.File("pytorch_model.bin.index.json"), Index(R"({"a":"one.bin"})"));
  Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 1);
  WriteText(folder.File("y.safetensors.index.json"), Index(R"({"a":"one.safetensors"})"));
  CHECK_THAT(Refusal(folder.path()), Contains("DATA_LOSS") &&
                                         Contains("x.safetensors.index.json") &&
                                         Contains("y.safetensors.index.json"));
  WriteText(folder.File(kIndexFile),
            Index(R"({"a":"leftover.safetensors","b":"leftover.safetensors"})"));
  checkpoint = Checkpoint::Open(folder.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 2);
}

TEST_CASE("consolidated files count only where there are no others", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("consolidated-00001-of-00002.safetensors"), FileOf({"wq"}));
  WriteFile(folder.File("consolidated-00002-of-00002.safetensors"), FileOf({"wk", "left"}));
  CHECK(Checkpoint::Open(folder.path())->tensors().size() == 3);
  WriteText(folder.File("consolidated.safetensors.index.json"),
            Index(R"({"wq":"consolidated-00001-of-00002.safetensors"})"));
  CHECK(Checkpoint::Open(folder.path())->tensors().size() == 1);
  WriteFile(folder.File(kSingleFile), FileOf({"a"}));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->tensors().size() == 1);
  CHECK(checkpoint->tensors()[0].name == "a");
}

TEST_CASE("an index that names a missing file is refused", "[safetensors]") {
  const TempFolder folder;
  WriteText(folder.File(kIndexFile), Index(R"({"a":"one.safetensors"})"));
  CHECK_THAT(Refusal(folder.path()), Contains("NOT_FOUND") && Contains("one.safetensors"));
}

TEST_CASE("an index that does not match the tensors of its files is refused", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("one.safetensors"), FileOf({"a", "b"}));
  WriteFile(folder.File("two.safetensors"), FileOf({"c"}));
  const std::string index = folder.File(kIndexFile);
  WriteText(index, Index(R"({"a":"one.safetensors"})"));
  CHECK_THAT(Refusal(folder.path()), Contains("tensor 'b' that the index does not name"));
  WriteText(index, Index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})"));
  CHECK_THAT(Refusal(folder.path()),
             Contains("'b' is in one.safetensors") && Contains("the index says two.safetensors"));
  WriteText(index, Index(R"({"a":"one.safetensors","b":"one.safetensors","d":"one.safetensors"})"));
  CHECK_THAT(Refusal(folder.path()), Contains("has no tensor 'd'"));
}

TEST_CASE("an index with file names outside its folder is refused", "[safetensors]") {
  const TempFolder folder;
  for (const std::string name :
       {"../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..", "", ".safetensors",
        ".x.safetensors", "x.bin", "x\\u0000.safetensors"}) {
    INFO(name);
    WriteText(folder.File(kIndexFile), Index("{\"a\":\"" + name + "\"}"));
    CHECK_THAT(Refusal(folder.path()), Contains("DATA_LOSS") && Contains("in the same folder"));
  }
}

TEST_CASE("a malformed index is refused", "[safetensors]") {
  const TempFolder folder;
  for (const std::string text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})",
        R"({"weight_map":{},"metadata":[]})"}) {
    INFO(text);
    WriteText(folder.File(kIndexFile), text);
    CHECK_THAT(Refusal(folder.path()), Contains("DATA_LOSS"));
  }
}

TEST_CASE("a folder without an index is read from all its safetensors files", "[safetensors]") {
  const TempFolder folder;
  CHECK_THAT(Refusal(folder.path()), Contains("NOT_FOUND"));
  WriteFile(folder.File("one.safetensors"), FileOf({"a"}));
  WriteFile(folder.File("two.safetensors"), FileOf({"b"}));
  WriteText(folder.File("config.json"), "{}");
  WriteText(folder.File("three.safetensors.tmp"), "rest");
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 2);
}

TEST_CASE("one tensor in two files is refused", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("one.safetensors"), FileOf({"a"}));
  WriteFile(folder.File("two.safetensors"), FileOf({"a"}));
  CHECK_THAT(Refusal(folder.path()), Contains("tensor 'a' is in two files"));
}

TEST_CASE("numbered files without an index must be complete and start at 1", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("model-00001-of-00002.safetensors"), FileOf({"a"}));
  CHECK_THAT(Refusal(folder.path()), Contains("DATA_LOSS") && Contains("of 2 numbered files 1"));
  WriteFile(folder.File("model-00002-of-00002.safetensors"), FileOf({"b"}));
  CHECK(Refusal(folder.path()) == "accepted");
  const TempFolder from_zero;
  WriteFile(from_zero.File("model-00000-of-00001.safetensors"), FileOf({"a"}));
  CHECK_THAT(Refusal(from_zero.path()), Contains("not published yet"));
}

TEST_CASE("a damaged file of a folder is refused and named", "[safetensors]") {
  const TempFolder folder;
  WriteFile(folder.File("one.safetensors"), FileOf({"a"}));
  WriteText(folder.File("two.safetensors"), "short");
  CHECK_THAT(Refusal(folder.path()), Contains("DATA_LOSS") && Contains("two.safetensors"));
}

TEST_CASE("an empty file is refused however it is opened", "[safetensors]") {
  const TempFolder folder;
  WriteText(folder.File("model.safetensors"), "");
  const FileAccess access =
      GENERATE(FileAccess::kReadOnly, FileAccess::kWritable, FileAccess::kUnmapped);
  CHECK_THAT(ToString(Checkpoint::Open(folder.File("model.safetensors"), access).status()),
             Contains("DATA_LOSS") && Contains("expected a safetensors file, found 0 bytes"));
}

TEST_CASE("a missing path and a path that is not a regular file are refused", "[safetensors]") {
  const TempFolder folder;
  CHECK_THAT(Refusal(folder.File("none")), Contains("NOT_FOUND"));
  std::filesystem::create_directories(folder.File("sub.safetensors"));
  CHECK_THAT(Refusal(folder.path()), Contains("expected a file"));
  CHECK_THAT(Refusal("/dev/null"), Contains("expected a file"));
}

TEST_CASE("a writable checkpoint is patched in place and all other bytes stay", "[safetensors]") {
  const TempFolder folder;
  const std::string path = folder.File("one.safetensors");
  WriteFile(path, FileOf({"a", "b"}));
  Bytes expected = ReadFile(path);
  {
    Result<Checkpoint> opened = Checkpoint::Open(folder.path(), FileAccess::kWritable);
    REQUIRE(opened.ok());
    const Checkpoint checkpoint = *std::move(opened);  // spans survive a move
    const CheckpointTensor& b = *checkpoint.Find("b");
    checkpoint.Writable(b)[1] = std::byte{0x77};
    CHECK(b.bytes[1] == std::byte{0x77});
    CHECK(checkpoint.Sync().ok());
    expected[b.offset + 1] = std::byte{0x77};
  }
  CHECK(ReadFile(path) == expected);
}

TEST_CASE("an open checkpoint reports that its files were changed since", "[safetensors]") {
  const TempFolder folder;
  const std::string path = folder.File("model-00002-of-00002.safetensors");
  WriteFile(folder.File("model-00001-of-00002.safetensors"), FileOf({"a"}));
  WriteFile(path, FileOf({"b"}));
  using std::filesystem::file_time_type;
  std::filesystem::last_write_time(path, file_time_type::clock::now() - std::chrono::hours(1));
  const Result<Checkpoint> reader = Checkpoint::Open(folder.path());
  REQUIRE(reader.ok());
  CHECK(reader->path() == folder.path());
  CHECK(reader->CheckUnchanged().ok());
  SECTION("by a write through a mapping") {
    const Result<Checkpoint> writer = Checkpoint::Open(path, FileAccess::kWritable);
    REQUIRE(writer.ok());
    writer->Writable(*writer->Find("b"))[1] = std::byte{0x77};
    REQUIRE(writer->Sync().ok());
    // Sync sets the time even if the pages were dirty before: a store alone then does not.
    CHECK(std::filesystem::last_write_time(path) >
          file_time_type::clock::now() - std::chrono::minutes(1));
  }
  SECTION("by replacing a file with another of the same bytes") {
    WriteFile(folder.File("other"), FileOf({"b"}));
    std::filesystem::last_write_time(folder.File("other"), std::filesystem::last_write_time(path));
    std::filesystem::rename(folder.File("other"), path);
  }
  SECTION("by removing a file") { std::filesystem::remove(path); }
  const Status changed = reader->CheckUnchanged();
  INFO(ToString(changed));
  CHECK(absl::IsAborted(changed));
  CHECK(ToString(changed).find(path + " was changed") != std::string::npos);
}

TEST_CASE("an unmapped checkpoint is read on request and finds that its file was cut",
          "[safetensors]") {
  const TempFolder folder;
  const std::string path = folder.File("one.safetensors");
  WriteFile(path, FileOf({"a"}));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(path, FileAccess::kUnmapped);
  REQUIRE(checkpoint.ok());
  const CheckpointTensor& tensor = *checkpoint->Find("a");
  CHECK(tensor.bytes.empty());
  std::vector<std::byte> read(tensor.size_bytes - 1);
  REQUIRE(checkpoint->Read(tensor, 1, read).ok());
  CHECK(read[1] == std::byte{2});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  const Status cut = checkpoint->Read(tensor, 1, read);
  CHECK(absl::IsUnavailable(cut));
  CHECK(ToString(cut).find(path) != std::string::npos);
}

TEST_CASE("names of numbered files are parsed and written the same", "[safetensors]") {
  const auto shard = ParseShardName("model-00002-of-00007.safetensors");
  REQUIRE(shard.has_value());
  CHECK(shard->number == 2);
  CHECK(shard->total == 7);
  CHECK(MakeShardName(*shard) == "model-00002-of-00007.safetensors");
  CHECK(ParseShardName("pytorch_model-123456-of-123456.safetensors").has_value());
  for (const char* const name : {"model.safetensors", "model-1-of-2.safetensors",
                                 "model-00001-of-.safetensors", "00001-of-00002.safetensors",
                                 "model-00001-00002.safetensors", "model-00001-of-00002.bin"}) {
    INFO(name);
    CHECK_FALSE(ParseShardName(name).has_value());
  }
}

}  // namespace
}  // namespace dws::safetensors
