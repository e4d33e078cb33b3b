#include "common/proto_convert/convert.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "common/model/limits.h"

namespace dws {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

// A layout with every form of shard: uncut, cut and owned in part, a scalar, an empty tensor, a box
// of a grid.
std::vector<Shard> Shards() {
  return {
      {.tensor = {.name = "bias", .dtype = DType::kF32, .shape = {7}}},
      {.tensor = {.name = "embed", .dtype = DType::kBF16, .shape = {12, 5}, .cuts = {{0, {4, 8}}}},
       .cells = {{1, 2}}},
      {.tensor = {.name = "empty", .dtype = DType::kU8, .shape = {0, 3}}},
      {.tensor = {.name = "grid", .shape = {6, 4, 5}, .cuts = {{0, {2, 3}}, {2, {1, 2}}}},
       .cells = {{1, 1}, {0, 2}}},
      {.tensor = {.name = "scale", .dtype = DType::kF64, .shape = {}}},
  };
}

RankLayout Layout() {
  auto layout = RankLayout::Create(Shards());
  REQUIRE(layout.ok());
  return *layout;
}

// The message of `Layout()`, for tests to damage as a peer could.
v1::RankLayout Sent() { return ToProto(Layout()); }

// The refusal of a layout message; fails the test when it is accepted.
std::string Refusal(const v1::RankLayout& message) {
  const auto layout = FromProto(message);
  REQUIRE_FALSE(layout.ok());
  CHECK(absl::IsInvalidArgument(layout.status()));
  return std::string(Message(layout.status()));
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a layout converts to a message and back with the same signature", "[proto_convert]") {
  const auto back = FromProto(ToProto(Layout()));
  REQUIRE(back.ok());
  CHECK(*back == Layout());
  CHECK(back->signature() == Layout().signature());
}

TEST_CASE("a layout survives serialisation", "[proto_convert]") {
  v1::RankLayout parsed;
  REQUIRE(parsed.ParseFromString(Sent().SerializeAsString()));
  const auto back = FromProto(parsed);
  REQUIRE(back.ok());
  CHECK(*back == Layout());
}

TEST_CASE("every dtype converts to a message and back with the number of the model",
          "[proto_convert]") {
  for (uint32_t number = 1; number <= 16; ++number) {
    const auto dtype = FromProto(static_cast<v1::DType>(number));
    REQUIRE(dtype.ok());
    CHECK(static_cast<uint32_t>(*dtype) == number);
    TensorSpec spec{.name = "t", .dtype = *dtype, .shape = {3}};
    CHECK(static_cast<uint32_t>(ToProto(spec).dtype()) == number);
    // "BF16" in the model is DTYPE_BF16 on the wire.
    CHECK(v1::DType_Name(static_cast<v1::DType>(number)) ==
          "DTYPE_" + std::string(ToString(*dtype)));
  }
}

TEST_CASE("a dtype that is unset or unknown is refused by its number", "[proto_convert]") {
  for (const int number : {0, 17, 255, -1}) {
    const auto dtype = FromProto(static_cast<v1::DType>(number));
    REQUIRE_FALSE(dtype.ok());
    CHECK(absl::IsInvalidArgument(dtype.status()));
    CHECK(Contains(std::string(Message(dtype.status())), std::to_string(number)));
  }
}

TEST_CASE("a stream id converts to a message and back", "[proto_convert]") {
  const StreamId stream{.incarnation = 7, .id_hi = kMax, .id_lo = 1};
  const auto back = FromProto(ToProto(stream));
  REQUIRE(back.ok());
  CHECK(*back == stream);
}

TEST_CASE("one half of a stream's random id may be zero but not both", "[proto_convert]") {
  CHECK(FromProto(ToProto(StreamId{.incarnation = 1, .id_hi = 0, .id_lo = 5})).ok());
  CHECK(FromProto(ToProto(StreamId{.incarnation = 1, .id_hi = 5, .id_lo = 0})).ok());
  CHECK_FALSE(FromProto(ToProto(StreamId{.incarnation = 1})).ok());
}

TEST_CASE("an unset stream id is refused", "[proto_convert]") {
  const auto unset = FromProto(v1::StreamId());
  REQUIRE_FALSE(unset.ok());
  CHECK(absl::IsInvalidArgument(unset.status()));
  CHECK(Contains(std::string(Message(unset.status())), "is not set"));
  CHECK_FALSE(FromProto(ToProto(StreamId{.incarnation = 0, .id_hi = 5, .id_lo = 5})).ok());
}

TEST_CASE("a digest converts to a message and back", "[proto_convert]") {
  const Digest digest{.lane0 = kMax, .lane1 = 0x0123456789ABCDEF};
  CHECK(FromProto(ToProto(digest)) == digest);
  CHECK(FromProto(v1::Digest()) == Digest{});
}

TEST_CASE("a frame entry converts to a message and back", "[proto_convert]") {
  const FrameEntry entry{
      .first_block = 3, .block_count = 9, .offset = kMax, .size_bytes = 77, .checksum = kMax - 1};
  CHECK(FromProto(ToProto(entry)) == entry);
}

TEST_CASE("an empty layout is refused", "[proto_convert]") {
  CHECK(Contains(Refusal(v1::RankLayout()), "no tensors"));
}

TEST_CASE("a layout with an unknown dtype is refused and the error names the tensor",
          "[proto_convert]") {
  v1::RankLayout message = Sent();
  message.mutable_shards(1)->mutable_tensor()->set_dtype(static_cast<v1::DType>(99));
  CHECK(Contains(Refusal(message), "tensor 'embed': dtype number 99"));
}

TEST_CASE("a layout out of order or with a name twice is refused by name", "[proto_convert]") {
  v1::RankLayout swapped = Sent();
  swapped.mutable_shards()->SwapElements(0, 1);
  CHECK(Contains(Refusal(swapped), "'bias'"));
  v1::RankLayout twice = Sent();
  *twice.mutable_shards(1) = twice.shards(0);
  CHECK(Contains(Refusal(twice), "'bias'"));
}

TEST_CASE("a shard without a tensor is refused", "[proto_convert]") {
  v1::RankLayout message = Sent();
  message.mutable_shards(0)->clear_tensor();
  CHECK(Contains(Refusal(message), "dtype number 0"));
}

TEST_CASE("a shard outside its tensor's slices is refused by name", "[proto_convert]") {
  struct Range {
    uint32_t first;
    uint32_t count;
  };
  for (const Range range : {Range{3, 1}, Range{1, 3}, Range{0, 0}, Range{1, 0xFFFFFFFF}}) {
    v1::RankLayout message = Sent();
    message.mutable_shards(1)->set_first_slice(range.first);
    message.mutable_shards(1)->set_slice_count(range.count);
    CHECK(Contains(Refusal(message), "tensor 'embed'"));
  }
}

TEST_CASE("cuts that do not ascend inside the dimension are refused by name", "[proto_convert]") {
  for (const std::vector<uint64_t>& cuts :
       {std::vector<uint64_t>{8, 4}, {4, 4}, {0, 4}, {4, 12}, {4, kMax}}) {
    v1::RankLayout message = Sent();
    v1::TensorSpec& tensor = *message.mutable_shards(1)->mutable_tensor();
    tensor.mutable_cuts()->Clear();
    tensor.mutable_cuts()->Add(cuts.begin(), cuts.end());
    CHECK(Contains(Refusal(message), "tensor 'embed'"));
  }
}

TEST_CASE("a cut on a dimension the tensor does not have is refused by name", "[proto_convert]") {
  v1::RankLayout message = Sent();
  message.mutable_shards(1)->mutable_tensor()->set_cut_dim(2);
  CHECK(Contains(Refusal(message), "tensor 'embed'"));
}

TEST_CASE("a grid is refused beside cuts of format 1 or with one dimension", "[proto_convert]") {
  v1::RankLayout beside = Sent();
  beside.mutable_shards(3)->mutable_tensor()->add_cuts(1);
  CHECK(Contains(Refusal(beside), "tensor 'grid' has a grid of 2 dimensions and 1 cuts beside it"));
  v1::RankLayout one = Sent();
  one.mutable_shards(3)->mutable_tensor()->mutable_grid()->RemoveLast();
  CHECK(Contains(Refusal(one), "tensor 'grid' has a grid of 1 dimensions"));
  v1::RankLayout many = Sent();
  for (int i = 0; i < 9; ++i) many.mutable_shards(3)->mutable_tensor()->add_grid()->set_dim(1);
  CHECK(Contains(Refusal(many), "tensor 'grid' has a grid of 11 dimensions"));
}

TEST_CASE("a shard of a grid must name cells, and only such a shard", "[proto_convert]") {
  v1::RankLayout slices = Sent();
  slices.mutable_shards(3)->set_slice_count(1);
  CHECK(Contains(Refusal(slices), "tensor 'grid' is cut on 2 dimensions"));
  v1::RankLayout outside = Sent();
  outside.mutable_shards(3)->mutable_cells(1)->set_count(4);
  CHECK(Contains(Refusal(outside), "'grid': slices 0 + 4 on dim 2 are outside its 3"));
  v1::RankLayout none = Sent();
  none.mutable_shards(3)->clear_cells();
  CHECK(Contains(Refusal(none), "'grid': 0 ranges of cells, expected 2"));
  v1::RankLayout added = Sent();
  added.mutable_shards(1)->add_cells()->set_count(1);
  CHECK(Contains(Refusal(added), "tensor 'embed'"));
}

TEST_CASE("a shape whose size overflows is refused by name", "[proto_convert]") {
  v1::RankLayout message = Sent();
  v1::TensorSpec& tensor = *message.mutable_shards(0)->mutable_tensor();
  tensor.add_shape(kMax);
  tensor.add_shape(kMax);
  CHECK(Contains(Refusal(message), "tensor 'bias'"));
}

TEST_CASE("names and shapes past their limits are refused", "[proto_convert]") {
  v1::RankLayout message = Sent();
  message.mutable_shards(0)->mutable_tensor()->set_name(
      std::string(limits::kTensorNameBytesMax + 1, 'a'));
  CHECK(Contains(Refusal(message), std::to_string(limits::kTensorNameBytesMax)));

  message = Sent();
  for (size_t i = 0; i < limits::kTensorRankMax; ++i) {
    message.mutable_shards(0)->mutable_tensor()->add_shape(1);
  }
  CHECK(Contains(Refusal(message), "tensor 'bias'"));
}

}  // namespace dws
