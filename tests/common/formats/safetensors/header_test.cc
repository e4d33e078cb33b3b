#include "common/formats/safetensors/header.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/model/limits.h"
#include "tests/common/formats/raw_file.h"

namespace dws::safetensors {
namespace {

using Catch::Contains;
using dws::testing::Bytes;
using dws::testing::RawFile;

std::string Refusal(const Bytes& file) {
  const Result<Header> header = ParseHeader(file, "f");
  return header.ok() ? "accepted" : ToString(header.status());
}

std::string Refusal(const std::string& json, size_t content_bytes) {
  return Refusal(RawFile(json, content_bytes));
}

// {"a": a U8 tensor with these members}.
std::string One(const std::string& shape, const std::string& offsets,
                const std::string& dtype = "\"U8\"") {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST_CASE("a header of tensors, metadata and padding is read", "[safetensors]") {
  const std::string json =
      R"({"__metadata__":{"format":"pt","ä":"ö"},"b":{"shape":[2,3],"dtype":"BF16",)"
      R"("data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}      )";
  const Bytes file = RawFile(json, 16);
  const Result<Header> header = ParseHeader(file, "f");
  REQUIRE(header.ok());
  CHECK(header->metadata == Metadata{{"format", "pt"}, {"ä", "ö"}});
  REQUIRE(header->tensors.size() == 3);
  CHECK(header->tensors[0].name == "a");
  CHECK(header->tensors[1].name == "empty");
  CHECK(header->tensors[1].shape == std::vector<uint64_t>{0, 7});
  CHECK(header->tensors[2].dtype == FileDType::kBF16);
  CHECK(header->BytesOf(header->tensors[2], file).data() == file.data() + 8 + json.size() + 4);
}

TEST_CASE("a file without tensors is read", "[safetensors]") {
  CHECK(Refusal("{}", 0) == "accepted");
  CHECK(Refusal(R"({"__metadata__":{}})", 0) == "accepted");
}

TEST_CASE("every dtype of the official library is read", "[safetensors]") {
  for (uint32_t i = 0; i < kFileDTypeCount; ++i) {
    const auto dtype = static_cast<FileDType>(i);
    INFO(NameOf(dtype));
    const uint64_t size_bytes = ElementBits(dtype);  // of 8 elements
    CHECK(Refusal(
              One("[2,4]", fmt::format("[0,{}]", size_bytes), fmt::format("\"{}\"", NameOf(dtype))),
              size_bytes) == "accepted");
    CHECK(FileDTypeNamed(NameOf(dtype)) == dtype);
    if (const auto model = ModelDType(dtype)) CHECK(FileDTypeOf(*model) == dtype);
  }
  CHECK(FileDTypeNamed("F8_E4M3FNUZ") == FileDType::kF8E4M3Fnuz);
  CHECK(FileDTypeNamed("F8_E5M2FNUZ") == FileDType::kF8E5M2Fnuz);
  CHECK_FALSE(ModelDType(FileDType::kF8E4M3Fnuz).has_value());
  CHECK_FALSE(ModelDType(FileDType::kC64).has_value());
  CHECK_FALSE(ModelDType(FileDType::kF4).has_value());
}

TEST_CASE("a file shorter than its header's length is refused", "[safetensors]") {
  CHECK_THAT(Refusal(Bytes(7)), Contains("DATA_LOSS") && Contains("found 7 bytes"));
  CHECK_THAT(Refusal(Bytes()), Contains("found 0 bytes"));
}

TEST_CASE("a header longer than the file is refused", "[safetensors]") {
  Bytes file = RawFile("{}", 0);
  StoreLe<uint64_t>(file.data(), 3);
  CHECK_THAT(Refusal(file), Contains("a header of 3 bytes in a file of 10"));
}

TEST_CASE("a header above the official library's limit is refused", "[safetensors]") {
  Bytes file = RawFile("{}", 0);
  for (const uint64_t length : {limits::kSafetensorsHeaderBytesMax + 1, ~uint64_t{0}}) {
    StoreLe<uint64_t>(file.data(), length);
    CHECK_THAT(Refusal(file), Contains("at most 100000000 are allowed"));
  }
}

TEST_CASE("a header that does not begin with a brace is refused", "[safetensors]") {
  CHECK_THAT(Refusal(" {}", 0), Contains("does not begin with '{'"));
  CHECK_THAT(Refusal("[]", 0), Contains("does not begin with '{'"));
  CHECK_THAT(Refusal("\xEF\xBB\xBF{}", 0), Contains("does not begin with '{'"));
  CHECK_THAT(Refusal("", 0), Contains("does not begin with '{'"));
}

TEST_CASE("a header that is not JSON is refused", "[safetensors]") {
  CHECK_THAT(Refusal("{\"a\":", 0), Contains("expected JSON"));
  CHECK_THAT(Refusal("{} {}", 0), Contains("expected JSON") && Contains("byte 3"));
  CHECK_THAT(Refusal(std::string("{}\0", 3), 0), Contains("expected JSON"));
  CHECK_THAT(Refusal("{'a':1}", 0), Contains("expected JSON"));
}

TEST_CASE("a header that is not UTF-8 is refused", "[safetensors]") {
  CHECK_THAT(Refusal("{\"\xFF\":1}", 0), Contains("expected UTF-8, byte 2"));
  CHECK_THAT(Refusal("{\"a\xC0\x80\":1}", 0), Contains("expected UTF-8, byte 3"));
}

TEST_CASE("two tensors of one name are refused", "[safetensors]") {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  CHECK_THAT(Refusal("{" + a + "," + a + "}", 1), Contains("the key 'a' occurs twice"));
  // The same name, written another way.
  const std::string escaped = R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})";
  CHECK_THAT(Refusal("{" + a + "," + escaped + "}", 2), Contains("the key 'a' occurs twice"));
}

TEST_CASE("a repeated member of a tensor or of the metadata is refused", "[safetensors]") {
  CHECK_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}})", 1),
             Contains("the key 'shape' occurs twice"));
  CHECK_THAT(Refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
             Contains("the key 'k' occurs twice"));
  CHECK_THAT(Refusal(R"({"__metadata__":{},"__metadata__":{}})", 0),
             Contains("the key '__metadata__' occurs twice"));
}

TEST_CASE("metadata with values that are not strings is refused", "[safetensors]") {
  CHECK_THAT(Refusal(R"({"__metadata__":{"k":1}})", 0),
             Contains("__metadata__: expected a string at 'k', found number"));
  CHECK_THAT(Refusal(R"({"__metadata__":{"k":{}}})", 0), Contains("found object"));
  CHECK_THAT(Refusal(R"({"__metadata__":[]})", 0), Contains("expected an object of strings"));
  CHECK_THAT(Refusal(R"({"__metadata__":null})", 0), Contains("expected an object of strings"));
}

TEST_CASE("a tensor's entry with missing, wrong or unknown members is refused", "[safetensors]") {
  CHECK_THAT(Refusal(R"({"a":1})", 0), Contains("tensor 'a': expected an object"));
  CHECK_THAT(Refusal(R"({"a":{}})", 0), Contains("has no dtype"));
  CHECK_THAT(Refusal(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), Contains("has no shape"));
  CHECK_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[1]}})", 1), Contains("has no data_offsets"));
  CHECK_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}})", 1),
             Contains("found 4 members"));
  CHECK_THAT(Refusal(One("[1]", "[0,1]", "8"), 1), Contains("its dtype is not a string"));
  CHECK_THAT(Refusal(One("1", "[0,1]"), 1), Contains("shape: expected a list"));
  CHECK_THAT(Refusal(One("[[1]]", "[0,1]"), 1), Contains("found array in it"));
}

TEST_CASE("an unknown dtype is refused", "[safetensors]") {
  CHECK_THAT(Refusal(One("[1]", "[0,1]", "\"U9\""), 1), Contains("unknown dtype 'U9'"));
  CHECK_THAT(Refusal(One("[1]", "[0,1]", "\"u8\""), 1), Contains("unknown dtype 'u8'"));
}

TEST_CASE("numbers that are fractional or negative or too large are refused", "[safetensors]") {
  for (const char* const number : {"-1", "1.0", "1e0", "18446744073709551616", "\"1\"", "true"}) {
    INFO(number);
    CHECK_THAT(Refusal(One(fmt::format("[{}]", number), "[0,1]"), 1),
               Contains("expected a list of whole numbers"));
    CHECK_THAT(Refusal(One("[1]", fmt::format("[0,{}]", number)), 1),
               Contains("expected a list of whole numbers"));
  }
}

TEST_CASE("a shape that does not match the size of its data_offsets is refused", "[safetensors]") {
  CHECK_THAT(Refusal(One("[2,3]", "[0,5]"), 5), Contains("has 6 bytes, its data_offsets hold 5"));
  CHECK_THAT(Refusal(One("[]", "[0,2]", "\"F32\""), 2), Contains("has 4 bytes"));
  CHECK_THAT(Refusal(One("[0]", "[0,1]"), 1), Contains("has 0 bytes"));
}

TEST_CASE("elements smaller than a byte must fill whole bytes", "[safetensors]") {
  CHECK_THAT(Refusal(One("[3]", "[0,2]", "\"F4\""), 2), Contains("expected whole bytes"));
  CHECK(Refusal(One("[4]", "[0,3]", "\"F6_E2M3\""), 3) == "accepted");
}

TEST_CASE("a shape whose size overflows is refused", "[safetensors]") {
  const std::string huge = "18446744073709551615";
  for (const std::string& shape :
       {"[" + huge + "]", "[" + huge + "," + huge + "]", std::string("[4294967296,4294967296]"),
        std::string("[4611686018427387904,4]")}) {
    INFO(shape);
    CHECK_THAT(Refusal(One(shape, "[0,0]", "\"F64\""), 0), Contains("RESOURCE_EXHAUSTED"));
  }
  CHECK(Refusal(One("[" + huge + ",0," + huge + "]", "[0,0]"), 0) == "accepted");
}

TEST_CASE("data_offsets out of order or not exactly two are refused", "[safetensors]") {
  CHECK_THAT(Refusal(One("[1]", "[1,0]"), 1), Contains("are not in order"));
  CHECK_THAT(Refusal(One("[1]", "[0]"), 1), Contains("expected two data_offsets, found 1"));
  CHECK_THAT(Refusal(One("[1]", "[0,1,2]"), 1), Contains("expected two data_offsets, found 3"));
}

std::string Two(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
}

TEST_CASE("holes between tensors are refused", "[safetensors]") {
  CHECK_THAT(Refusal(Two("[0,2]", "[3,5]"), 5), Contains("a hole of 1 bytes before tensor 'b'"));
  CHECK_THAT(Refusal(Two("[1,3]", "[3,5]"), 5), Contains("a hole of 1 bytes before tensor 'a'"));
}

TEST_CASE("tensors that overlap are refused", "[safetensors]") {
  CHECK_THAT(Refusal(Two("[0,2]", "[1,3]"), 3), Contains("inside the tensor before it"));
  CHECK_THAT(Refusal(Two("[0,2]", "[0,2]"), 2), Contains("inside the tensor before it"));
}

TEST_CASE("bytes after the last tensor are refused", "[safetensors]") {
  CHECK_THAT(Refusal(One("[1]", "[0,1]"), 3), Contains("2 bytes after the last tensor"));
  CHECK_THAT(Refusal("{}", 1), Contains("1 bytes after the last tensor"));
}

TEST_CASE("a file that ends inside its tensors is refused", "[safetensors]") {
  CHECK_THAT(Refusal(One("[4]", "[0,4]"), 3),
             Contains("its tensors have 4 bytes") && Contains("the file holds 3"));
}

TEST_CASE("names and ranks above the limits are refused", "[safetensors]") {
  const std::string name(limits::kTensorNameBytesMax + 1, 'n');
  CHECK_THAT(Refusal("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
             Contains("RESOURCE_EXHAUSTED") && Contains("a tensor's name has 513 bytes"));
  CHECK_THAT(Refusal(One("[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1),
             Contains("RESOURCE_EXHAUSTED") && Contains("9 dimensions"));
}

TEST_CASE("JSON nested deeper than any header is refused", "[safetensors]") {
  CHECK_THAT(Refusal("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0),
             Contains("nested deeper than"));
}

TEST_CASE("more tensors than the limit are refused", "[safetensors]") {
  std::string json = "{";
  for (size_t i = 0; i <= limits::kTensorsMax + 1; ++i) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        i == 0 ? "" : ",", i);
  }
  CHECK_THAT(Refusal(json + "}", 0), Contains("RESOURCE_EXHAUSTED") && Contains("tensors"));
}

TEST_CASE("a new header is padded and its tensors are in the official order", "[safetensors]") {
  const Result<NewHeader> made =
      MakeHeader({{"k", "v"}}, {{.name = "b", .dtype = FileDType::kBF16, .shape = {3}},
                                {.name = "z", .dtype = FileDType::kF32, .shape = {1}},
                                {.name = "a", .dtype = FileDType::kBF16, .shape = {1}},
                                {.name = "c", .dtype = FileDType::kU8, .shape = {5}}});
  REQUIRE(made.ok());
  CHECK(made->bytes.size() % 8 == 0);
  CHECK(made->header.tensors.back().end == 4 + 2 + 6 + 5);
  std::string order;
  for (const HeaderTensor& tensor : made->header.tensors) order += tensor.name;
  CHECK(order == "zabc");
  Bytes file = made->bytes;
  file.resize(file.size() + made->header.tensors.back().end);
  const Result<Header> read = ParseHeader(file, "f");
  REQUIRE(read.ok());
  CHECK(read->tensors == made->header.tensors);
  CHECK(read->metadata == made->header.metadata);
}

TEST_CASE("making a header refuses what a reader would refuse", "[safetensors]") {
  const HeaderTensor a{.name = "a", .dtype = FileDType::kU8, .shape = {1}};
  CHECK_THAT(ToString(MakeHeader({}, {a, a}).status()), Contains("two tensors are named 'a'"));
  HeaderTensor wide = a;
  wide.dtype = FileDType::kBF16;
  CHECK_THAT(ToString(MakeHeader({}, {a, wide}).status()), Contains("two tensors are named 'a'"));
  CHECK_FALSE(MakeHeader({}, {{.name = "__metadata__", .shape = {1}}}).ok());
  CHECK_FALSE(MakeHeader({}, {{.name = "\xFF", .shape = {1}}}).ok());
  CHECK_FALSE(MakeHeader({{"\xFF", ""}}, {}).ok());
  CHECK_FALSE(MakeHeader({}, {{.name = "f", .dtype = FileDType::kF4, .shape = {1}}}).ok());
  const TensorBytesView view{.name = "a", .shape = {2}, .bytes = {}};
  CHECK_THAT(ToString(MakeFile({}, {&view, 1}).status()), Contains("0 bytes, its shape has 2"));
}

TEST_CASE("a damaged header is never read outside its file", "[safetensors]") {
  std::mt19937_64 random(5);
  const Bytes sound = RawFile(Two("[0,2]", "[2,4]"), 4);
  for (int round = 0; round < 20'000; ++round) {
    Bytes file = sound;
    for (int i = 0; i < 1 + round % 3; ++i)
      file[random() % file.size()] = std::byte(random() & 0xFF);
    const Result<Header> header = ParseHeader(file, "f");
    if (!header.ok()) continue;
    uint64_t bytes = header->content_offset;
    for (const HeaderTensor& tensor : header->tensors) bytes += tensor.size_bytes();
    REQUIRE(bytes == file.size());
  }
}

}  // namespace
}  // namespace dws::safetensors
