#include "common/service/grpc/data_message.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "proto/sync.pb.h"

namespace dws {
namespace {

TEST_CASE("a chunk's data is sent from the object's memory, which lives until then",
          "[data_message]") {
  auto object = std::make_shared<const std::string>(100'000, 'x');
  const std::weak_ptr<const std::string> lives = object;
  const ByteSpan bytes = AsBytes(*object);
  const std::vector<grpc::Slice> data = {SharedSlice(bytes.first(70'000), object),
                                         SharedSlice(bytes.subspan(70'000), object)};
  v1::FetchChunk head;
  head.set_object_bytes(500'000);
  head.set_offset(7);
  grpc::ByteBuffer message = DataMessage(head, v1::FetchChunk::kDataFieldNumber, data);

  std::vector<grpc::Slice> slices;
  REQUIRE(message.Dump(&slices).ok());
  REQUIRE(slices.size() == 3);
  CHECK(slices[1].begin() == reinterpret_cast<const uint8_t*>(bytes.data()));
  CHECK(slices[2].begin() == reinterpret_cast<const uint8_t*>(bytes.data()) + 70'000);
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  v1::FetchChunk parsed;
  REQUIRE(parsed.ParseFromString(text));
  CHECK(parsed.object_bytes() == 500'000);
  CHECK(parsed.offset() == 7);
  CHECK(parsed.data() == *object);
}

TEST_CASE("gRPC lets go of the object with the last message of it", "[data_message]") {
  auto object = std::make_shared<const std::string>(100'000, 'x');
  const std::weak_ptr<const std::string> lives = object;
  std::vector<grpc::Slice> data = {SharedSlice(AsBytes(*object), object)};
  grpc::ByteBuffer message = DataMessage(v1::FetchChunk(), v1::FetchChunk::kDataFieldNumber, data);
  object.reset();
  data.clear();
  CHECK(!lives.expired());
  message.Clear();
  CHECK(lives.expired());
}

TEST_CASE("a message without data has an empty field", "[data_message]") {
  const grpc::ByteBuffer message =
      DataMessage(v1::FetchChunk(), v1::FetchChunk::kDataFieldNumber, {});
  CHECK(message.Length() == 2);
}

}  // namespace
}  // namespace dws
