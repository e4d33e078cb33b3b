// A FullFrame message on the wire, without the copies that a message class makes of its bytes: they
// are sent from where they are, and read to where they belong.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <optional>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "proto/sync.pb.h"

namespace dws {

// The message `head` (without data) with `data`, which gRPC holds until it is sent.
grpc::ByteBuffer FullFrameMessage(const v1::FullFrame& head, grpc::Slice data);

// One message that arrived. First the head, then the data. Threads: one.
class FullFrameReader {
 public:
  // `message` outlives it.
  explicit FullFrameReader(grpc::ByteBuffer& message) : message_(message) {}

  // Everything but the data. Fields may come in any order; of a field that comes more than once the
  // last counts, and unknown ones are passed over, as protobuf has it. DATA_LOSS: it is no such
  // message, or it is shorter than it says.
  Result<v1::FullFrame> Head();
  // Known after Head.
  uint64_t data_bytes() const { return data_bytes_; }
  // The next bytes of the data, of which as many are left. DATA_LOSS: as Head.
  Status ReadData(MutableByteSpan to);

 private:
  grpc::ByteBuffer& message_;
  std::optional<grpc::ProtoBufferReader> data_;  // stands at the next byte of the data
  uint64_t data_bytes_ = 0;
  uint64_t read_bytes_ = 0;  // of them
};

}  // namespace dws
