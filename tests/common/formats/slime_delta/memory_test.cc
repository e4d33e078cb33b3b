// Version folders that claim more than the local checkpoint has room for, and checkpoints of any
// size: the process needs a bounded amount of memory. Large files are sparse, so they need no disk
// either.
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

using Catch::Contains;
using safetensors::kIndexFile;

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kGib = uint64_t{1} << 30;
constexpr uint64_t kLargeBytes = 512 * kMib;
constexpr const char* kShard = "model-00000-of-00001.safetensors";
// Sanitizers keep what was freed, and shadow what was touched.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kGrowthBytesMax = 1024 * kMib;
#else
constexpr uint64_t kGrowthBytesMax = 96 * kMib;
#endif

uint64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == key + ":" && status >> kilobytes) return kilobytes << 10;
  }
  FAIL("no " << key);
  return 0;
}

// By how much the memory of this process, mapped files included, has grown at most during `work`.
uint64_t GrowthDuring(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM begins again
  const uint64_t before = StatusBytes("VmRSS");
  work();
  const uint64_t most = StatusBytes("VmHWM");
  return most - std::min(before, most);
}

// A file of a header and `content_bytes` of zeros.
void WriteSparse(const std::string& path, const std::string& json, uint64_t content_bytes) {
  dws::testing::WriteFile(path, dws::testing::RawFile(json, 0));
  REQUIRE(::truncate(path.c_str(), static_cast<off_t>(8 + json.size() + content_bytes)) == 0);
}

std::string Entry(const std::string& name, const std::string& dtype, uint64_t bytes) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}})", name, dtype,
                     dtype == "U8" ? bytes : bytes / 2, bytes);
}

std::string Delta(const std::string& weight_map) {
  return R"({"metadata":{"version":"000001","base_version":"000000","delta_encoding":"xor",)"
         R"("compression_format":"zstd","checksum_format":"xxh3-128"},"weight_map":{)" +
         weight_map + "}}";
}

// A local checkpoint of a few small tensors, open, and the place of version 1.
struct Scene {
  Scene() {
    WriteBase(local, RandomWeights(1));
    opened = LocalCheckpoint::Open(files, pool, local, {}).value();
  }

  // What comes of applying version 1. CHECKs that memory stays bounded.
  std::string Apply() {
    std::string result = "applied";
    const uint64_t growth = GrowthDuring([&] {
      const auto report = opened->Apply(version);
      if (!report.ok()) result = ToString(report.status());
    });
    CHECK(growth < kGrowthBytesMax);
    CHECK(Load(local) == RandomWeights(1));
    return result;
  }

  TempFolder folder;
  PosixFileSystem files;
  ThreadPool pool{1};
  std::string local = folder.File("local");
  std::string version = folder.File("published/weight_v000001");
  std::unique_ptr<LocalCheckpoint> opened;
};

TEST_CASE("a shard of gigabytes for a small tensor is refused by its header", "[slime][memory]") {
  Scene scene;
  dws::testing::WriteText(scene.version + "/" + kIndexFile,
                          Delta(fmt::format(R"("scale":"{}")", kShard)));
  const std::string digest = R"("__metadata__":{"scale":"00000000000000000000000000000000"})";
  WriteSparse(scene.version + "/" + kShard,
              "{" + digest + "," + Entry("scale", "U8", 8 * kGib) + "}", 8 * kGib);
  CHECK_THAT(scene.Apply(), Contains("DATA_LOSS") && Contains("tensor 'scale'") &&
                                Contains("an entry of 8589934592 bytes, expected at most"));
}

TEST_CASE("a file of gigabytes without a header is refused unread", "[slime][memory]") {
  Scene scene;
  dws::testing::WriteText(scene.version + "/" + kIndexFile,
                          Delta(fmt::format(R"("scale":"{}")", kShard)));
  WriteSparse(scene.version + "/" + kShard, "", 8 * kGib);
  CHECK_THAT(scene.Apply(), Contains("DATA_LOSS") && Contains("does not begin with '{'"));
}

TEST_CASE("a header that is longer than those of all local tensors is refused unread",
          "[slime][memory]") {
  Scene scene;
  dws::testing::WriteText(scene.version + "/" + kIndexFile,
                          Delta(fmt::format(R"("scale":"{}")", kShard)));
  dws::testing::Bytes length(8);
  StoreLe<uint64_t>(length.data(), 99'000'000);
  const std::string path = scene.version + "/" + kShard;
  dws::testing::WriteFile(path, length);
  REQUIRE(::truncate(path.c_str(), 8 * kGib) == 0);
  CHECK_THAT(scene.Apply(), Contains("RESOURCE_EXHAUSTED") &&
                                Contains("a header of 99000000 bytes") &&
                                Contains("the checkpoint that it is for needs at most"));
}

TEST_CASE("an index of millions of names is refused unread, one of thousands by their number",
          "[slime][memory]") {
  Scene scene;
  const bool full = GENERATE(false, true);
  const int count = GENERATE(1'000, 20'000, 3'000'000);
  CAPTURE(full, count);
  std::string map;
  for (int i = 0; i < count; ++i) {
    map += fmt::format(R"({}"t{}":"{}")", i == 0 ? "" : ",", i, kShard);
  }
  dws::testing::WriteText(scene.version + "/" + kIndexFile,
                          full ? R"({"weight_map":{)" + map + "}}" : Delta(map));
  const std::string result = scene.Apply();
  if (count > 20'000) {
    CHECK_THAT(result,
               Contains("RESOURCE_EXHAUSTED") && Contains(kIndexFile) && Contains("bytes allowed"));
  } else if (count > 1'000) {
    CHECK_THAT(result, Contains("RESOURCE_EXHAUSTED") && Contains("more than the 1022 tensors"));
  } else if (full) {
    CHECK_THAT(result, Contains("UNAVAILABLE") && Contains("which does not exist (yet)"));
  } else {
    CHECK_THAT(result, Contains("FAILED_PRECONDITION") && Contains("lacks these tensors: t0"));
  }
}

TEST_CASE("a full version in one file of thousands of tensors is refused", "[slime][memory]") {
  Scene scene;
  std::string header;
  for (int i = 0; i < 20'000; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                          i == 0 ? "{" : ",", i);
  }
  WriteSparse(scene.version + "/" + safetensors::kSingleFile, header + "}", 0);
  CHECK_THAT(scene.Apply(), Contains("RESOURCE_EXHAUSTED") && Contains("20000 tensors") &&
                                Contains("at most 1022 are allowed"));
}

TEST_CASE("an index of millions of names is read within limits without a checkpoint to compare",
          "[slime][memory]") {
  std::string map;
  for (int i = 0; i < 1'500'000; ++i) {
    map += fmt::format(R"({}"t{}":"{}")", i == 0 ? "" : ",", i, kShard);
  }
  const std::string text = Delta(map);
  std::string result;
  const uint64_t growth =
      GrowthDuring([&] { result = ToString(ParseVersionIndex(text, 1, "index").status()); });
  CHECK_THAT(result, Contains("RESOURCE_EXHAUSTED") && Contains("more than the 200000 tensors"));
  CHECK(growth < kGrowthBytesMax);
}

TEST_CASE("a frame that states more than its tensor's bytes is refused before it is decompressed",
          "[slime][memory]") {
  Scene scene;
  const dws::testing::Bytes frame = CompressEntry(dws::testing::Bytes(16 * kMib));
  const std::string header = R"({"__metadata__":{"layer.8":"00000000000000000000000000000000"},)" +
                             Entry("layer.8", "U8", frame.size()) + "}";
  dws::testing::Bytes file = dws::testing::RawFile(header, 0);
  file.insert(file.end(), frame.begin(), frame.end());
  dws::testing::WriteFile(scene.version + "/" + kShard, file);
  dws::testing::WriteText(scene.version + "/" + kIndexFile,
                          Delta(fmt::format(R"("layer.8":"{}")", kShard)));
  CHECK_THAT(scene.Apply(), Contains("DATA_LOSS") && Contains("tensor 'layer.8'") &&
                                Contains("a xor payload of 16777216 bytes"));
}

// A tensor of kLargeBytes zeros, and versions of it, with a byte changed at the end.
struct LargeScene {
  LargeScene() { WriteSparse(local + "/model.safetensors", header, kLargeBytes); }

  // The digest of kLargeBytes zeros, the last of which is `last`.
  static std::string DigestWith(std::byte last) {
    Checksum checksum(ChecksumFormat::kXxh3);
    const dws::testing::Bytes zeros(kMib);
    for (uint64_t done = 0; done + kMib < kLargeBytes; done += kMib) checksum.Update(zeros);
    checksum.Update(ByteSpan(zeros).first(kMib - 1));
    checksum.Update(ByteSpan(&last, 1));
    return checksum.Text();
  }

  // An xor of zeros, with `last` at the end.
  static dws::testing::Bytes XorFrame(std::byte last) {
    dws::testing::Bytes frame;
    dws::testing::Bytes piece(kMib), out(kMib);
    ZSTD_CCtx* const context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setPledgedSrcSize(context, kLargeBytes);
    for (uint64_t done = 0; done < kLargeBytes; done += kMib) {
      const bool ends = done + kMib == kLargeBytes;
      if (ends) piece.back() = last;
      ZSTD_inBuffer input = {piece.data(), piece.size(), 0};
      size_t left = 1;
      while (ends ? left != 0 : input.pos < input.size) {
        ZSTD_outBuffer output = {out.data(), out.size(), 0};
        left = ZSTD_compressStream2(context, &output, &input, ends ? ZSTD_e_end : ZSTD_e_continue);
        REQUIRE_FALSE(ZSTD_isError(left));
        frame.insert(frame.end(), out.begin(), out.begin() + static_cast<int64_t>(output.pos));
      }
    }
    ZSTD_freeCCtx(context);
    return frame;
  }

  std::byte LastByte() const {
    std::ifstream file(local + "/model.safetensors", std::ios::binary);
    file.seekg(-1, std::ios::end);
    return std::byte(file.get());
  }

  TempFolder folder;
  std::string local = folder.File("local");
  std::string header = "{" + Entry("w", "BF16", kLargeBytes) + "}";
};

TEST_CASE("a checkpoint is opened, verified and changed in less memory than it has bytes",
          "[slime][memory]") {
  const LargeScene scene;
  const std::string first = scene.folder.File("published/weight_v000001");
  const dws::testing::Bytes frame = LargeScene::XorFrame(std::byte{7});
  dws::testing::Bytes file =
      dws::testing::RawFile(R"({"__metadata__":{"w":")" + LargeScene::DigestWith(std::byte{7}) +
                                "\"}," + Entry("w", "U8", frame.size()) + "}",
                            0);
  file.insert(file.end(), frame.begin(), frame.end());
  dws::testing::WriteFile(first + "/" + kShard, file);
  dws::testing::WriteText(first + "/" + kIndexFile, Delta(fmt::format(R"("w":"{}")", kShard)));
  // A full checkpoint: the same tensor without the change.
  const std::string second = scene.folder.File("published/weight_v000002");
  WriteSparse(second + "/" + kShard, scene.header, kLargeBytes);
  dws::testing::WriteText(second + "/" + kIndexFile,
                          fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", kShard));

  CHECK(GrowthDuring([&] { CHECK(OpenOnce(scene.local) == "version 0"); }) < kGrowthBytesMax);
  CHECK(GrowthDuring([&] { CHECK(ApplyOnce(scene.local, first) == "applied"); }) < kGrowthBytesMax);
  CHECK(scene.LastByte() == std::byte{7});
  CHECK(GrowthDuring([&] { CHECK(ApplyOnce(scene.local, second) == "applied"); }) <
        kGrowthBytesMax);
  CHECK(scene.LastByte() == std::byte{0});
  // A full checkpoint with one tensor more, which replaces the files.
  const std::string third = scene.folder.File("published/weight_v000003");
  const std::string more =
      fmt::format(R"(,"v":{{"dtype":"BF16","shape":[1],"data_offsets":[{},{}]}}}})", kLargeBytes,
                  kLargeBytes + 2);
  WriteSparse(third + "/" + safetensors::kSingleFile,
              scene.header.substr(0, scene.header.size() - 1) + more, kLargeBytes + 2);
  CHECK(GrowthDuring([&] { CHECK(ApplyOnce(scene.local, third) == "applied"); }) < kGrowthBytesMax);
  const auto replaced = safetensors::Checkpoint::Open(scene.local);
  REQUIRE(replaced.ok());
  CHECK(replaced->tensors().size() == 2);
}

}  // namespace
}  // namespace dws::slime
