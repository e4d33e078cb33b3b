#include "common/sources/sender/full_call.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/full_frame_message.h"
#include "common/service/grpc/grpc_status.h"
#include "proto/sync.grpc.pb.h"

namespace dws {
namespace {

using RawStub = grpc::TemplatedGenericStub<v1::FetchFullRequest, grpc::ByteBuffer>;

Status TakeMessage(grpc::ByteBuffer& message, FullAssembly& assembly,
                   std::vector<std::byte>& buffer) {
  FullFrameReader reader(message);
  DWS_ASSIGN_OR_RETURN(const v1::FullFrame head, reader.Head());
  const FrameEntry entry = FromProto(head.entry());
  const BlockRange range{.slice = RankSlice(head.rank_slice()),
                         .first_block = entry.first_block,
                         .block_count = entry.block_count};
  if (!assembly.Wants(range)) {
    return DataLossError("a full frame of slice {}, blocks {} + {}, was not expected here",
                         head.rank_slice(), entry.first_block, entry.block_count);
  }
  const uint64_t size = SizeBytes(assembly.layout(), range);
  if (reader.data_bytes() != size || size != entry.size_bytes || size > limits::kFrameBytesMax) {
    return DataLossError("a full frame of {} bytes says it has {}, at most {} are supported",
                         reader.data_bytes(), entry.size_bytes, limits::kFrameBytesMax);
  }
  // Reads a block at a time, so that the block is digested while it is in the cache.
  const uint32_t together = assembly.memory().empty() ? range.block_count : 1;
  for (uint32_t i = 0; i < range.block_count; i += together) {
    const BlockRange some{
        .slice = range.slice, .first_block = range.first_block + i, .block_count = together};
    const MutableByteSpan room = assembly.Room(some, buffer);
    if (const Status read = reader.ReadData(room); !read.ok()) {
      assembly.Drop(some);  // its earlier bytes, if any, are half overwritten
      return read;
    }
    DWS_RETURN_IF_ERROR(assembly.Take(some, room));
  }
  return OkStatus();
}

}  // namespace

FullCallEnd CallFetchFull(const std::shared_ptr<grpc::Channel>& channel,
                          grpc::ClientContext& context, const v1::FetchFullRequest& request,
                          const std::function<Status()>& check_peer, FullAssembly& assembly) {
  // Used by this call only. One operation runs at a time, so every event is that operation's.
  grpc::CompletionQueue events;
  const auto wait = [&events] {
    void* tag = nullptr;
    bool ok = false;
    return events.Next(&tag, &ok) && ok;
  };
  const auto call =
      RawStub(channel).PrepareCall(&context, "/dws.v1.SyncService/FetchFull", &events);
  FullCallEnd end;
  call->StartCall(nullptr);
  bool open = wait();
  if (open) {
    call->WriteLast(request, grpc::WriteOptions(), nullptr);
    open = wait();
  }
  std::vector<std::byte> buffer;
  for (bool first = true; open && end.local.ok(); first = false) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    if (!wait()) break;
    if (first) end.local = check_peer();
    if (end.local.ok()) end.local = TakeMessage(message, assembly, buffer);
  }
  if (!end.local.ok()) context.TryCancel();
  grpc::Status finished;
  call->Finish(&finished, nullptr);
  wait();
  end.remote = FromGrpc(finished);
  events.Shutdown();
  while (wait()) {
  }
  return end;
}

}  // namespace dws
