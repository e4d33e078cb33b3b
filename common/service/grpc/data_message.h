// Messages whose `data` goes to gRPC from where it is. A message class would copy it, and gRPC
// would copy it again, for each receiver.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <span>

#include "common/base/bytes.h"

namespace dws {

// `bytes` as gRPC sends them. They stay as they are until `owner` ends, which gRPC keeps so long.
grpc::Slice SharedSlice(ByteSpan bytes, std::shared_ptr<const void> owner);

// The message `head`, which has no field `data_field`, with that field: all of `data`, in order.
grpc::ByteBuffer DataMessage(const google::protobuf::MessageLite& head, int data_field,
                             std::span<const grpc::Slice> data);

}  // namespace dws
