// A FullFrame message on the wire, without the copies that a message class makes of its bytes: they
// are sent from where they are, and read to where they belong.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/block_range.h"
#include "proto/sync.pb.h"

namespace dws {

// The message `head` (without data) with `data`, which gRPC holds until it is sent.
grpc::ByteBuffer FullFrameMessage(const v1::FullFrame& head, const grpc::Slice& data);

// The blocks that a FetchFullRequest asks for. INVALID_ARGUMENT: they are out of order, or not in
// the layout.
Result<std::vector<BlockRange>> ParseBlockRanges(
    const google::protobuf::RepeatedPtrField<v1::BlockRange>& messages, const RankLayout& layout);

// One message that arrived. Read the head first, then the data. Threads: one.
class FullFrameReader {
 public:
  // `message` must outlive it.
  explicit FullFrameReader(grpc::ByteBuffer& message) : message_(message) {}

  // Returns everything but the data. As in protobuf, fields may come in any order, the last of
  // repeated fields counts, and unknown fields are ignored. DATA_LOSS: it is not such a message, or
  // it is shorter than it says.
  Result<v1::FullFrame> Head();
  // Known after Head.
  uint64_t data_bytes() const { return data_bytes_; }
  // Reads the next bytes of the data into `to`; at least so many must be left. DATA_LOSS: as Head.
  Status ReadData(MutableByteSpan to);

 private:
  grpc::ByteBuffer& message_;
  std::optional<grpc::ProtoBufferReader> data_;  // stands at the next byte of the data
  uint64_t data_bytes_ = 0;
  uint64_t read_bytes_ = 0;  // of the data
};

}  // namespace dws
