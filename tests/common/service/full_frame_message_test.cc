#include "common/service/grpc/full_frame_message.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

namespace dws {
namespace {

v1::FullFrame Head() {
  v1::FullFrame head;
  head.set_rank_slice(7);
  head.mutable_entry()->set_first_block(3);
  head.mutable_entry()->set_block_count(2);
  return head;
}

std::string TextOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  REQUIRE(message.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// In slices of `size` bytes, as a transport may cut it.
grpc::ByteBuffer Cut(const std::string& text, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < text.size(); i += size) slices.emplace_back(text.substr(i, size));
  return {slices.data(), slices.size()};
}

TEST_CASE("a full frame is an ordinary message whose data was not copied", "[full_frame]") {
  const std::string data(100'000, 'x');
  const grpc::ByteBuffer sent = FullFrameMessage(Head(), grpc::Slice(data));
  v1::FullFrame parsed;
  REQUIRE(parsed.ParseFromString(TextOf(sent)));
  CHECK(parsed.data() == data);
  CHECK(parsed.entry().first_block() == 3);

  for (const size_t piece : {1, 7, 4096, 1 << 20}) {
    grpc::ByteBuffer message = Cut(TextOf(sent), piece);
    FullFrameReader reader(message);
    const auto head = reader.Head();
    REQUIRE(head.ok());
    CHECK(head->rank_slice() == 7);
    CHECK(head->entry().block_count() == 2);
    REQUIRE(reader.data_bytes() == data.size());
    std::vector<std::byte> to(data.size());
    const MutableByteSpan parts(to);  // as many as its reader likes
    REQUIRE(reader.ReadData(parts.first(70'001)).ok());
    REQUIRE(reader.ReadData(parts.subspan(70'001)).ok());
    CHECK(AsText(to) == data);
  }
}

// What the reader makes of a message: `data` beside everything else.
Result<v1::FullFrame> ReadAll(const std::string& text, size_t piece) {
  grpc::ByteBuffer message = Cut(text, piece);
  FullFrameReader reader(message);
  DWS_ASSIGN_OR_RETURN(v1::FullFrame frame, reader.Head());
  std::vector<std::byte> data(reader.data_bytes());
  DWS_RETURN_IF_ERROR(reader.ReadData(data));
  frame.set_data(std::string(AsText(data)));
  return frame;
}

// That the reader takes a message as protobuf's own parser does.
void CheckAsProtobuf(const std::string& text) {
  v1::FullFrame expected;
  REQUIRE(expected.ParseFromString(text));
  expected.DiscardUnknownFields();
  for (const size_t piece : {1, 3, 1000}) {
    const auto frame = ReadAll(text, piece);
    REQUIRE(frame.ok());
    CHECK(frame->SerializeAsString() == expected.SerializeAsString());
  }
}

// The fields of a frame, each by itself, and two that it does not have.
std::vector<std::string> Fields() {
  v1::FullFrame slice;
  slice.set_rank_slice(7);
  v1::FullFrame entry;
  *entry.mutable_entry() = Head().entry();
  v1::FullFrame data;
  data.set_data("what the tensors are");
  return {slice.SerializeAsString(), entry.SerializeAsString(), data.SerializeAsString(),
          std::string("\x20\x01", 2), std::string("\x9A\x06\x03new", 6)};
}

TEST_CASE("the fields of a full frame may come in any order", "[full_frame]") {
  std::vector<std::string> fields = Fields();
  std::sort(fields.begin(), fields.end());
  do {
    std::string text;
    for (const std::string& field : fields) text += field;
    CheckAsProtobuf(text);
  } while (std::next_permutation(fields.begin(), fields.end()));
}

TEST_CASE("of a field of a full frame that is repeated the last counts", "[full_frame]") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::string> fields = Fields();
  v1::FullFrame other;
  other.set_rank_slice(300);
  other.mutable_entry()->set_block_count(9);
  other.mutable_entry()->set_size_bytes(1 << 20);
  fields.push_back(other.SerializeAsString());
  fields.emplace_back("\x1A\x00", 2);                          // data, empty
  fields.emplace_back("\x1A\x03new", 5);                       // data
  fields.emplace_back("\x20\x80\x80\x80\x80\x80\x80\x01", 8);  // a number that it does not have
  for (int turn = 0; turn < 500; ++turn) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += fields[random() % fields.size()];
    CheckAsProtobuf(text);
  }
}

TEST_CASE("damaged messages of full tensors are refused, whatever they say", "[full_frame]") {
  const std::string whole = TextOf(FullFrameMessage(Head(), grpc::Slice(std::string(1000, 'x'))));
  for (size_t size = 1; size < whole.size(); ++size) {
    INFO(size << " bytes of " << whole.size());
    const auto frame = ReadAll(whole.substr(0, size), 64);
    v1::FullFrame expected;
    CHECK(frame.ok() == expected.ParseFromString(whole.substr(0, size)));
    if (!frame.ok()) CHECK(absl::IsDataLoss(frame.status()));
  }
  for (const char* const huge :
       {"\x12\xFF\xFF\xFF\xFF\x0F", "\x1A\xFF\xFF\xFF\xFF\x0F", "\x1A\xFF\xFF\xFF\xFF\x07"}) {
    CHECK(absl::IsDataLoss(ReadAll(huge, 64).status()));
    CHECK(absl::IsDataLoss(ReadAll(huge + Head().SerializeAsString(), 64).status()));
  }
}

}  // namespace
}  // namespace dws
