#include "common/formats/slime_delta/version_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <thread>

#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/full_version.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

using Catch::Contains;
using safetensors::kIndexFile;

constexpr const char* kOneShard = "model-00000-of-00001.safetensors";

std::string Refusal(const std::string& folder) {
  const auto opened = VersionFolder::Open(folder);
  return opened.ok() ? "accepted" : ToString(opened.status());
}

// The bytes that a published version brings `before` to.
Weights After(const std::string& folder, const Weights& before) {
  const auto opened = VersionFolder::Open(folder);
  INFO(opened.status());
  REQUIRE(opened.ok());
  Weights after = before;
  const DeltaDescription& delta = *opened->index().delta;
  for (const VersionEntry& entry : opened->entries()) {
    Bytes& tensor = after.at(entry.name);
    auto stream = EntryStream::Open(delta.encoding, opened->SourceOf(entry), tensor.size());
    REQUIRE(stream.ok());
    Bytes payload(stream->payload_bytes());
    REQUIRE(stream->Read(payload).ok());
    REQUIRE(stream->Finish().ok());
    REQUIRE(ApplyPayload(delta.encoding, payload, tensor).ok());
    CHECK(ChecksumText(delta.checksum, tensor) == entry.digest);
  }
  return after;
}

// A version folder written by hand: one shard with these tensors, its metadata, and the index.
std::string HandMade(const TempFolder& folder, const std::string& shard_json, size_t content_bytes,
                     const std::string& weight_map) {
  const std::string path = folder.File("weight_v000001");
  dws::testing::WriteFile(path + "/" + kOneShard, dws::testing::RawFile(shard_json, content_bytes));
  dws::testing::WriteText(
      path + "/" + kIndexFile,
      R"({"metadata":{"version":"000001","base_version":"000000","delta_encoding":"xor",)"
      R"("compression_format":"zstd","checksum_format":"adler32"},"weight_map":)" +
          weight_map + "}");
  return path;
}

TEST_CASE(
    "a published version brings before to after with every encoding and checksum and shard size",
    "[slime]") {
  for (const Encoding encoding : {Encoding::kXor, Encoding::kOverwrite, Encoding::kRuns}) {
    for (const ChecksumFormat checksum :
         {ChecksumFormat::kXxh3, ChecksumFormat::kBlake3, ChecksumFormat::kAdler32}) {
      for (const uint64_t shard_bytes : {1, 150, 300}) {
        const TempFolder folder;
        const Weights before = RandomWeights(1);
        const Weights after = Next(before, 2);
        const std::string path = Publish(folder.path(), before, after,
                                         {.version = 1,
                                          .encoding = encoding,
                                          .checksum = checksum,
                                          .shard_bytes_max = shard_bytes});
        CHECK(After(path, before) == after);
        const auto opened = VersionFolder::Open(path);
        REQUIRE(opened.ok());
        CHECK(opened->entries().size() == before.size() - 1);  // without the unchanged one
        CHECK(opened->checkpoint()->files().size() > 1);
        CHECK(opened->checkpoint()->files()[0].name.starts_with("model-00000-of-0"));
      }
    }
  }
}

TEST_CASE("several threads write one version", "[slime]") {
  const TempFolder folder;
  const Weights before = RandomWeights(3);
  const Weights after = Next(before, 4);
  PosixFileSystem files;
  auto writer = VersionWriter::Create(files, folder.path(), {.version = 7, .shard_bytes_max = 200});
  REQUIRE(writer.ok());
  std::vector<std::pair<std::string, Status>> results;
  for (const auto& [name, bytes] : after) results.emplace_back(name, OkStatus());
  ThreadPool pool(4);
  pool.ParallelFor(results.size(), [&](size_t index, size_t) {
    const std::string& name = results[index].first;
    results[index].second = (*writer)->Add(name, before.at(name), after.at(name));
  });
  for (const auto& [name, status] : results) CHECK(status.ok());
  const auto summary = (*writer)->Finish();
  REQUIRE(summary.ok());
  CHECK(summary->tensor_count == before.size() - 1);
  CHECK(summary->shard_count > 2);
  CHECK(After(folder.File("weight_v000007"), before) == after);
}

TEST_CASE("a version without changes has only an index", "[slime]") {
  const TempFolder folder;
  const Weights weights = RandomWeights(5);
  const std::string path = Publish(folder.path(), weights, weights, {.version = 1});
  PosixFileSystem files;
  CHECK(*files.List(path) == std::vector<std::string>{kIndexFile});
  CHECK(After(path, weights) == weights);
}

TEST_CASE("a version is published only once and never as version 0", "[slime]") {
  const TempFolder folder;
  const Weights weights = RandomWeights(6);
  Publish(folder.path(), weights, Next(weights, 7), {.version = 1});
  PosixFileSystem files;
  CHECK(
      absl::IsAlreadyExists(VersionWriter::Create(files, folder.path(), {.version = 1}).status()));
  CHECK(absl::IsInvalidArgument(
      VersionWriter::Create(files, folder.path(), {.version = 0}).status()));
}

TEST_CASE("the next writer removes the unfinished files of one that died", "[slime]") {
  const TempFolder folder;
  const Weights before = RandomWeights(8);
  const Weights after = Next(before, 9);
  const std::string unfinished = folder.File(UnfinishedFolderName(1, {}));
  dws::testing::WriteText(unfinished + "/model-00000-of-00009.safetensors", "rest");
  dws::testing::WriteText(unfinished + "/model-00003.tmp", "rest");
  Publish(folder.path(), before, after, {.version = 1});
  const std::string path = folder.File("weight_v000001");
  CHECK(After(path, before) == after);
  CHECK_FALSE(std::filesystem::exists(unfinished));
  CHECK_FALSE(std::filesystem::exists(path + "/model-00000-of-00009.safetensors"));
}

TEST_CASE("a version folder gets its name only when it is complete", "[slime]") {
  const TempFolder folder;
  PosixFileSystem files;
  const std::string path = folder.File("weight_v000001");
  bool asked = false;
  auto writer = VersionWriter::Create(files, folder.path(),
                                      {.version = 1, .may_publish = [&] {
                                         asked = true;
                                         CHECK_FALSE(std::filesystem::exists(path));
                                         return FailedPreconditionError("somebody else's by now");
                                       }});
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Add("a", Bytes(2), Bytes(2, std::byte{1})).ok());
  CHECK_THAT(ToString((*writer)->Finish().status()), Contains("somebody else's by now"));
  CHECK(asked);
  CHECK_FALSE(std::filesystem::exists(path));

  // An incomplete folder of another writer is left as it is.
  dws::testing::WriteText(path + "/model-00000.tmp", "theirs");
  CHECK(
      absl::IsAlreadyExists(VersionWriter::Create(files, folder.path(), {.version = 1}).status()));
}

TEST_CASE("a tensor added twice or with two sizes fails the version", "[slime]") {
  const TempFolder folder;
  PosixFileSystem files;
  auto writer = VersionWriter::Create(files, folder.path(), {.version = 1});
  REQUIRE(writer.ok());
  CHECK((*writer)->Add("a", Bytes(2), Bytes(2, std::byte{1})).ok());
  CHECK_THAT(ToString((*writer)->Add("a", Bytes(2), Bytes(2, std::byte{1}))),
             Contains("'a' was added twice"));
  CHECK_FALSE((*writer)->Finish().ok());
  auto other = VersionWriter::Create(files, folder.path(), {.version = 1});
  REQUIRE(other.ok());
  CHECK_THAT(ToString((*other)->Add("a", Bytes(2), Bytes(3))), Contains("tensor 'a'"));
  CHECK_FALSE((*other)->Finish().ok());
}

TEST_CASE("a disk that fails at any step and then loses power publishes nothing", "[slime]") {
  const Weights before = RandomWeights(10);
  const Weights after = Next(before, 11);
  const auto publish = [&](FaultFileSystem& disk) -> Status {
    DWS_ASSIGN_OR_RETURN(auto writer,
                         VersionWriter::Create(disk, "/d", {.version = 1, .shard_bytes_max = 300}));
    for (const auto& [name, bytes] : after) {
      static_cast<void>(
          writer->Add(name, before.at(name), bytes));  // Finish reports the error again
    }
    return writer->Finish().status();
  };
  FaultFileSystem whole;
  REQUIRE(publish(whole).ok());
  const int operations = whole.operation_count();
  REQUIRE(operations > 15);
  for (int n = 1; n <= operations; ++n) {
    INFO("operation " << n);
    FaultFileSystem disk;
    disk.FailOperation(n, ResourceExhaustedError("disk full"));
    CHECK(absl::IsResourceExhausted(publish(disk)));
    disk.LosePower();
    CHECK(absl::IsUnavailable(ReadVersionIndex(disk, "/d/weight_v000001").status()));
  }
}

TEST_CASE("version folders are listed in order and other folders are ignored", "[slime]") {
  const TempFolder folder;
  for (const char* const name : {"weight_v000010", "weight_v000002", "weight_v3", "other"}) {
    std::filesystem::create_directories(folder.File(name));
  }
  PosixFileSystem files;
  CHECK(*ListVersions(files, folder.path()) == std::vector<uint64_t>{2, 10});
  CHECK_THAT(Refusal(folder.File("other")), Contains("expected a version folder"));
  CHECK_THAT(Refusal(folder.File("weight_v000002")),
             Contains("UNAVAILABLE") && Contains("not published yet"));
}

TEST_CASE("entries that are not U8 lists and missing or malformed digests are refused", "[slime]") {
  const std::string map = R"({"a":")" + std::string(kOneShard) + R"("})";
  const std::string entry = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const auto refusal = [&](const std::string& json) {
    const TempFolder folder;
    return Refusal(HandMade(folder, json, 4, map));
  };
  CHECK(refusal(R"({"__metadata__":{"a":"00000001"},)" + entry) == "accepted");
  CHECK_THAT(refusal("{" + entry), Contains("no digest of it"));
  CHECK_THAT(refusal(R"({"__metadata__":{"b":"00000001"},)" + entry), Contains("no digest of it"));
  for (const char* const digest : {"0000001", "0000000A", "", "000000001"}) {
    CHECK_THAT(refusal(R"({"__metadata__":{"a":")" + std::string(digest) + "\"}," + entry),
               Contains("is not a valid adler32 digest"));
  }
  const std::string digests = R"({"__metadata__":{"a":"00000001"},)";
  CHECK_THAT(refusal(digests + R"("a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})"),
             Contains("expected a list of U8, found I8"));
  CHECK_THAT(refusal(digests + R"("a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})"),
             Contains("expected a list of U8"));
}

TEST_CASE("the digests that a full checkpoint states are compared with its tensors", "[slime]") {
  // As ModelExpress writes it: shards from 1 on, in the index the format of the digests.
  const std::string shard = "model-00001-of-00001.safetensors";
  const auto refusal = [&](const std::string& digests) {
    const TempFolder folder;
    const std::string path = folder.File("weight_v000003");
    dws::testing::WriteFile(
        path + "/" + shard,
        dws::testing::RawFile(
            "{" + digests + R"("a":{"dtype":"BF16","shape":[2],)" + R"("data_offsets":[0,4]}})",
            4));
    dws::testing::WriteText(path + "/" + kIndexFile,
                            R"({"metadata":{"checksum_format":"adler32","total_size":4},)"
                            R"("weight_map":{"a":")" +
                                shard + "\"}}");
    return Refusal(path);
  };
  CHECK(refusal(R"("__metadata__":{"a":"000e0007"},)") == "accepted");  // of bytes 0 to 3
  CHECK_THAT(refusal(R"("__metadata__":{"a":"000e0008"},)"),
             Contains("DATA_LOSS") &&
                 Contains("its adler32 is 000e0007, its shard says 000e0008: the file is damaged"));
  CHECK_THAT(refusal(R"("__metadata__":{"b":"000e0007"},)"), Contains("no digest of it"));
  CHECK_THAT(refusal(R"("__metadata__":{"a":"4001"},)"), Contains("not a valid adler32 digest"));
}

TEST_CASE("a shard missing in the index and shard numbers with gaps are refused", "[slime]") {
  const TempFolder folder;
  const Weights before = RandomWeights(12);
  const std::string path = Publish(folder.path(), before, Next(before, 13), {.version = 1});
  CHECK(Refusal(path) == "accepted");
  dws::testing::WriteText(path + "/model-00099-of-00100.safetensors", "");
  CHECK_THAT(Refusal(path), Contains("DATA_LOSS") && Contains("that its index does not name"));

  const TempFolder gap;
  const std::string other = HandMade(
      gap,
      R"({"__metadata__":{"a":"00000001"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
      R"({"a":"model-00001-of-00002.safetensors"})");
  std::filesystem::rename(other + "/" + kOneShard, other + "/model-00001-of-00002.safetensors");
  CHECK_THAT(Refusal(other), Contains("expected numbers from 00000 without a gap"));
}

TEST_CASE("a full checkpoint is published complete and asks for its tensors in file order",
          "[slime]") {
  const TempFolder folder;
  PosixFileSystem files;
  const auto tensor = [](const std::string& name, safetensors::FileDType dtype, uint64_t size) {
    return safetensors::HeaderTensor{.name = name, .dtype = dtype, .shape = {size}};
  };
  const auto plan = PlanShards(
      {tensor("c", safetensors::FileDType::kU8, 3), tensor("b", safetensors::FileDType::kF32, 2),
       tensor("a", safetensors::FileDType::kU8, 4)},
      12);
  REQUIRE(plan.ok());
  const FullVersionOptions options{.version = 7, .extra = {{"whose", "ours"}}};
  std::string asked;
  bool failing = true;
  const Bytes zeros(8);
  const auto source = [&](const safetensors::HeaderTensor& wanted) -> Result<ByteSpan> {
    asked += wanted.name;
    if (failing && wanted.name == "c") return UnavailableError("not now");
    return ByteSpan(zeros).first(wanted.size_bytes());
  };
  CHECK(
      absl::IsUnavailable(WriteFullVersion(files, folder.path(), options, *plan, source).status()));
  CHECK_THAT(Refusal(folder.File("weight_v000007")), Contains("not published yet"));

  failing = false;
  asked.clear();
  const auto written = WriteFullVersion(files, folder.path(), options, *plan, source);
  REQUIRE(written.ok());
  CHECK(*written == 15);
  CHECK(asked == "bac");  // by shard, then in the order of the official library
  const auto opened = VersionFolder::Open(folder.File("weight_v000007"));
  INFO(opened.status());
  REQUIRE(opened.ok());
  CHECK_FALSE(opened->index().delta.has_value());
  CHECK(opened->index().extra.at("whose") == "ours");
  CHECK(opened->index().weight_map.at("a") == "model-00000-of-00002.safetensors");
  CHECK(opened->index().weight_map.at("c") == "model-00001-of-00002.safetensors");
  CHECK(opened->checkpoint()->tensors().size() == 3);
  CHECK(files.List(folder.File("weight_v000007"))->size() == 3);
  CHECK(absl::IsAlreadyExists(
      WriteFullVersion(files, folder.path(), options, *plan, source).status()));
  CHECK_FALSE(PlanShards({}, 12).ok());
}

TEST_CASE("versions of two runs with one number have two identities", "[slime]") {
  const Weights before = RandomWeights(14);
  const auto identity = [&](uint64_t seed) {
    const TempFolder folder;
    const std::string path = Publish(folder.path(), before, Next(before, seed), {.version = 1});
    return VersionFolder::Open(path)->identity();
  };
  CHECK(identity(1) == identity(1));
  CHECK(identity(1) != identity(2));
}

}  // namespace
}  // namespace dws::slime
