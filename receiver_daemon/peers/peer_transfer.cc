// The version is looked at again with each frame (ServedWeights::Read): what was read before a
// commit is of the version that was asked for.
#include "receiver_daemon/peers/peer_transfer.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/full_frame_message.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {

PeerTransfer::PeerTransfer(ServedWeights& weights, Executor& executor, EgressLimit& egress,
                           PeerCounters& counters)
    : weights_(weights), executor_(executor), paced_(egress), counters_(counters) {
  ++counters_.transfers;
}

void PeerTransfer::Refuse(const Status& reason) {
  if (absl::IsAborted(reason)) ++counters_.other_version;
  if (absl::IsResourceExhausted(reason)) ++counters_.too_many;
  Finish(ToGrpc(reason));
}

void PeerTransfer::Send(Order order) {
  order_ = std::move(order);
  Post();
}

void PeerTransfer::Post() {
  if (executor_.Post([this] { Next(); })) return;
  Refuse(ResourceExhaustedError("this receiver serves too many others; ask another"));
}

void PeerTransfer::OnWriteDone(bool ok) {
  message_.Clear();
  if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the reader hung up"});
  Post();
}

std::optional<BlockRange> PeerTransfer::Take() {
  const RankLayout& layout = order_.found.layouts->rank(order_.rank);
  while (next_range_ < order_.ranges.size()) {
    const BlockRange& asked = order_.ranges[next_range_];
    if (next_block_ == asked.block_count ||
        !weights_.Holds(order_.found.number, order_.rank, asked.slice)) {
      ++next_range_;
      next_block_ = 0;
      continue;
    }
    const uint32_t count =
        std::min(BlocksIn(limits::kFrameBytesMax, layout.slice(asked.slice).dtype),
                 asked.block_count - next_block_);
    const uint32_t first = asked.first_block + std::exchange(next_block_, next_block_ + count);
    return BlockRange{.slice = asked.slice, .first_block = first, .block_count = count};
  }
  return std::nullopt;
}

void PeerTransfer::Next() {
  const std::optional<BlockRange> range = Take();
  if (!range.has_value()) return Finish(grpc::Status::OK);
  const uint64_t bytes = SizeBytes(order_.found.layouts->rank(order_.rank), *range);
  std::unique_ptr<std::byte[]> copy(new std::byte[bytes]);
  const Status read = weights_.Read(order_.found.number, order_.rank, *range, {copy.get(), bytes});
  if (!read.ok()) return Refuse(read);
  v1::FullFrame head;
  head.set_rank_slice(range->slice.value());
  *head.mutable_entry() = ToProto(FrameEntry{
      .first_block = range->first_block, .block_count = range->block_count, .size_bytes = bytes});
  const auto release = [](void* memory) { delete[] static_cast<std::byte*>(memory); };
  message_ = FullFrameMessage(head, grpc::Slice(copy.release(), bytes, release));
  counters_.served_bytes += bytes;
  paced_.At(bytes, [this] { StartWrite(&message_); });
}

}  // namespace dws
