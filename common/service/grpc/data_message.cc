// The field comes last, so that nothing but its tag and length has to be written before the data.
#include "common/service/grpc/data_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {

grpc::Slice SharedSlice(ByteSpan bytes, std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  const auto give_back = [](void* kept) { delete static_cast<Owner*>(kept); };
  auto kept = std::make_unique<Owner>(std::move(owner));
  // gRPC only reads them.
  return {const_cast<std::byte*>(bytes.data()), bytes.size(), give_back, kept.release()};
}

grpc::ByteBuffer DataMessage(const google::protobuf::MessageLite& head, int data_field,
                             std::span<const grpc::Slice> data) {
  using google::protobuf::internal::WireFormatLite;
  using google::protobuf::io::CodedOutputStream;
  size_t size = 0;
  for (const grpc::Slice& slice : data) size += slice.size();
  DWS_CHECK(size <= limits::kGrpcMessageBytesMax);
  std::string bytes = head.SerializeAsString();
  std::array<uint8_t, 20> field;  // tag and length of the data
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      WireFormatLite::MakeTag(data_field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), field.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(size), end);
  bytes.append(reinterpret_cast<const char*>(field.data()),
               static_cast<size_t>(end - field.data()));
  std::vector<grpc::Slice> slices = {grpc::Slice(bytes)};
  slices.insert(slices.end(), data.begin(), data.end());
  return {slices.data(), slices.size()};
}

}  // namespace dws
