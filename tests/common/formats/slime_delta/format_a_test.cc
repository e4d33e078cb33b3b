#include "common/formats/slime_delta/format_a.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/payload.h"
#include "tests/common/formats/raw_file.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

using Catch::Contains;
using dws::testing::Bytes;
using safetensors::FileDType;

struct Parts {
  Bytes positions;
  Bytes values = Bytes(6, std::byte{9});
  std::string value_dtype = "BF16";
  std::string encoding = "deltas";
  nlohmann::json params = nlohmann::json::array();
  bool compressed = false;

  Bytes File() const {
    const std::vector<safetensors::TensorBytesView> tensors = {
        {.name = "__positions__", .shape = {positions.size()}, .bytes = positions},
        {.name = "__values__",
         .dtype = *safetensors::FileDTypeNamed(value_dtype),
         .shape = {values.size() / 2},
         .bytes = values}};
    safetensors::Metadata metadata = {{"params", params.dump()}, {"prev_version", "1"}};
    if (!encoding.empty()) metadata["encoding"] = encoding;
    const auto file = safetensors::MakeFile(metadata, tensors);
    REQUIRE(file.ok());
    return compressed ? CompressEntry(*file) : *file;
  }
};

template <typename Number>
Bytes Numbers(const std::vector<Number>& numbers) {
  Bytes bytes(numbers.size() * sizeof(Number));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

nlohmann::json Param(const std::string& name, int pos_end, int width, int val_start, int val_end) {
  return {{"name", name},           {"dtype", "bfloat16"}, {"shape", {4, 5}},
          {"pos_start", 0},         {"pos_end", pos_end},  {"pos_width", width},
          {"val_start", val_start}, {"val_end", val_end}};
}

// Three changed elements of "a": 0, 7 and 19 of 20.
Parts Sound() {
  Parts parts{.positions = Numbers<uint16_t>({0, 6, 11})};
  parts.params.push_back(Param("a", 6, 2, 0, 3));
  return parts;
}

std::string Refusal(const Parts& parts, std::optional<FlushEncoding> encoding = std::nullopt) {
  const Bytes file = parts.File();
  const auto flush = ParseFlush(file, encoding, "f");
  return flush.ok() ? "accepted" : ToString(flush.status());
}

Bytes Apply(const Parts& parts, std::optional<FlushEncoding> encoding = std::nullopt) {
  const Bytes file = parts.File();
  const auto flush = ParseFlush(file, encoding, "f");
  INFO(flush.status());
  REQUIRE(flush.ok());
  Bytes tensor(40);
  for (const FlushParam& param : flush->params)
    REQUIRE(ApplyFlushParam(*flush, param, tensor).ok());
  return tensor;
}

TEST_CASE("indices and gaps and compressed gaps make the same change", "[slime]") {
  Bytes expected(40);
  for (const size_t element : {0, 7, 19}) {
    expected[2 * element] = expected[2 * element + 1] = std::byte{9};
  }
  CHECK(Apply(Sound()) == expected);
  Parts compressed = Sound();
  compressed.encoding = "deltas_zstd";
  compressed.compressed = true;
  CHECK(Apply(compressed) == expected);
  Parts wide = Sound();
  wide.positions = Numbers<uint32_t>({0, 6, 11});
  wide.params[0] = Param("a", 12, 4, 0, 3);
  CHECK(Apply(wide) == expected);
  Parts indices = wide;
  indices.encoding = "indices";
  indices.positions = Numbers<uint32_t>({0, 7, 19});
  CHECK(Apply(indices) == expected);
  indices.encoding = "";
  CHECK(Apply(indices, FlushEncoding::kIndices) == expected);
  indices.params[0]["dtype"] = "torch.bfloat16";
  CHECK(Apply(indices, FlushEncoding::kIndices) == expected);
}

TEST_CASE("a missing or unknown or contradicted encoding is refused", "[slime]") {
  Parts parts = Sound();
  parts.encoding = "";
  CHECK_THAT(Refusal(parts), Contains("has no encoding"));
  parts.encoding = "gaps";
  CHECK_THAT(Refusal(parts), Contains("unexpected encoding 'gaps'"));
  CHECK_THAT(Refusal(Sound(), FlushEncoding::kIndices), Contains("unexpected encoding 'deltas'"));
  parts = Sound();
  parts.compressed = true;
  CHECK_THAT(Refusal(parts), Contains("its encoding says otherwise"));
}

TEST_CASE("elements outside the tensor are refused and nothing is written", "[slime]") {
  Parts parts = Sound();
  parts.positions = Numbers<uint16_t>({0, 6, 12});
  const Bytes file = parts.File();
  const auto flush = ParseFlush(file, std::nullopt, "f");
  REQUIRE(flush.ok());
  Bytes tensor(40);
  CHECK_THAT(ToString(ApplyFlushParam(*flush, flush->params[0], tensor)),
             Contains("element 20 of 20"));
  CHECK(tensor == Bytes(40));
  Bytes shorter(38);
  CHECK_THAT(ToString(ApplyFlushParam(*flush, flush->params[0], shorter)),
             Contains("has 40 bytes, the tensor 38"));
}

TEST_CASE("parameters that do not fit their file are refused", "[slime]") {
  const auto with = [](const char* key, const nlohmann::json& value) {
    Parts parts = Sound();
    parts.params[0][key] = value;
    return Refusal(parts);
  };
  CHECK_THAT(with("pos_end", 8), Contains("positions: 0 to 8 of 6"));
  CHECK_THAT(with("pos_start", 7), Contains("positions: 7 to 6 of 6"));
  CHECK_THAT(with("pos_end", 5), Contains("5 bytes of positions"));
  CHECK_THAT(with("val_end", 4), Contains("values: 0 to 4 of 3"));
  CHECK_THAT(with("val_end", 2), Contains("for 2 values"));
  CHECK_THAT(with("pos_width", 3), Contains("pos_width 3"));
  CHECK_THAT(with("pos_width", 0), Contains("pos_width 0"));
  CHECK_THAT(with("pos_start", -1), Contains("expected a whole number as its pos_start"));
  CHECK_THAT(with("pos_end", 1e3), Contains("expected a whole number as its pos_end"));
  CHECK_THAT(with("dtype", "float32"), Contains("expected the dtype of its values, BF16"));
  CHECK_THAT(with("dtype", 7), Contains("expected the dtype of its values, BF16"));
  CHECK_THAT(with("shape", "x"), Contains("has no shape"));
  CHECK_THAT(with("shape", {1, -2}), Contains("whole numbers"));
  CHECK_THAT(with("name", nullptr), Contains("without a name"));
}

TEST_CASE("files without positions, values or parameters are refused", "[slime]") {
  const auto refusal = [](const safetensors::Metadata& metadata,
                          const std::vector<safetensors::TensorBytesView>& tensors) {
    const auto file = safetensors::MakeFile(metadata, tensors);
    REQUIRE(file.ok());
    const auto flush = ParseFlush(*file, FlushEncoding::kDeltas, "f");
    return flush.ok() ? "accepted" : ToString(flush.status());
  };
  const safetensors::TensorBytesView positions{.name = "__positions__", .shape = {0}};
  const safetensors::TensorBytesView values{
      .name = "__values__", .dtype = FileDType::kBF16, .shape = {0}};
  CHECK(refusal({{"params", "[]"}}, {positions, values}) == "accepted");
  CHECK_THAT(refusal({{"params", "[]"}}, {positions}), Contains("expected __positions__ and"));
  CHECK_THAT(refusal({}, {positions, values}), Contains("has no params"));
  CHECK_THAT(refusal({{"params", "{}"}}, {positions, values}), Contains("expected a list"));
  CHECK_THAT(refusal({{"params", "[1]"}}, {positions, values}), Contains("without a name"));
  CHECK_THAT(refusal({{"params", "["}}, {positions, values}), Contains("expected JSON"));
  CHECK_THAT(refusal({{"params", "[]"}}, {positions, values, {.name = "x", .shape = {0}}}),
             Contains("an unexpected tensor 'x'"));
}

TEST_CASE("a compressed file that states an impossible size is refused", "[slime]") {
  Bytes bomb(16);
  StoreLe<uint32_t>(bomb.data(), 0xFD2FB528);
  bomb[4] = std::byte{0xE0};
  StoreLe<uint64_t>(bomb.data() + 5, uint64_t{8} << 30);
  bomb[13] = std::byte{1};
  CHECK_THAT(ToString(ParseFlush(bomb, std::nullopt, "f").status()),
             Contains("RESOURCE_EXHAUSTED"));
}

TEST_CASE("flushes are listed once the DONE file exists", "[slime]") {
  const TempFolder folder;
  PosixFileSystem files;
  for (const char* const name : {"rank0001_flush000000.safetensors",
                                 "rank0000_flush000001.safetensors", "rank0000_flush000000.tmp"}) {
    dws::testing::WriteText(folder.File(name), "");
  }
  CHECK(absl::IsUnavailable(ListFlushes(files, folder.path()).status()));
  dws::testing::WriteText(folder.File("DONE"), "");
  const auto paths = ListFlushes(files, folder.path());
  REQUIRE(paths.ok());
  CHECK(*paths == std::vector<std::string>{folder.File("rank0000_flush000001.safetensors"),
                                           folder.File("rank0001_flush000000.safetensors")});
}

}  // namespace
}  // namespace dws::slime
