#include "common/service/grpc/full_frame_message.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace dws {
namespace {

v1::FullFrame Head() {
  v1::FullFrame head;
  head.set_rank_slice(7);
  head.mutable_entry()->set_first_block(3);
  head.mutable_entry()->set_block_count(2);
  head.set_raw(true);
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
  CHECK(parsed.raw());
  CHECK(parsed.entry().first_block() == 3);

  for (const size_t piece : {1, 7, 4096, 1 << 20}) {
    grpc::ByteBuffer message = Cut(TextOf(sent), piece);
    FullFrameReader reader(message);
    const auto head = reader.Head();
    REQUIRE(head.ok());
    CHECK(head->rank_slice() == 7);
    CHECK(head->raw());
    CHECK(head->entry().block_count() == 2);
    REQUIRE(reader.data_bytes() == data.size());
    std::vector<std::byte> to(data.size());
    const MutableByteSpan parts(to);  // as many as its reader likes
    REQUIRE(reader.ReadData(parts.first(70'001)).ok());
    REQUIRE(reader.ReadData(parts.subspan(70'001)).ok());
    CHECK(AsText(to) == data);
  }
}

TEST_CASE("a frame without data and one with fields of later releases are read", "[full_frame]") {
  std::string text = Head().SerializeAsString();
  grpc::ByteBuffer message = Cut(text, 3);
  FullFrameReader empty(message);
  REQUIRE(empty.Head().ok());
  CHECK(empty.data_bytes() == 0);

  text.append("\x9A\x06\x03new", 6);  // field 99
  text.append("\x1A\x02hi", 4);       // the data
  grpc::ByteBuffer later = Cut(text, 2);
  FullFrameReader reader(later);
  REQUIRE(reader.Head().ok());
  CHECK(reader.data_bytes() == 2);
}

TEST_CASE("damaged messages of full tensors are refused, whatever they say", "[full_frame]") {
  const std::string whole = TextOf(FullFrameMessage(Head(), grpc::Slice(std::string(1000, 'x'))));
  for (size_t size = 1; size < whole.size(); ++size) {
    grpc::ByteBuffer message = Cut(whole.substr(0, size), 64);
    FullFrameReader reader(message);
    const auto head = reader.Head();
    if (!head.ok()) {
      CHECK(absl::IsDataLoss(head.status()));
      continue;
    }
    if (reader.data_bytes() == 0) continue;  // it ends before the data
    CHECK(reader.data_bytes() == 1000);
    std::vector<std::byte> to(reader.data_bytes());
    CHECK(absl::IsDataLoss(reader.ReadData(to)));
  }
  grpc::ByteBuffer huge_entry = Cut(std::string("\x12\xFF\xFF\xFF\xFF\x0F"), 64);
  FullFrameReader reader(huge_entry);
  CHECK(absl::IsDataLoss(reader.Head().status()));
}

}  // namespace
}  // namespace dws
