// Texts are cut to what a message may have: a peer refuses longer ones.
#include "receiver_daemon/transfer/grpc/sender_messages.h"

#include <utility>

#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"

namespace dws {

v1::SyncUp NackMessage(const VersionAt& version, uint64_t nonce, const Rejection& rejection) {
  v1::SyncUp message;
  v1::Nack& nack = *message.mutable_nack();
  nack.set_nonce(nonce);
  nack.set_version(version.version.value());
  if (rejection.last_good.has_value()) nack.set_last_good_version(rejection.last_good->value());
  nack.set_code(static_cast<uint32_t>(rejection.reason.code()));
  nack.set_message(std::string(Utf8Prefix(Message(rejection.reason), limits::kErrorBytesMax)));
  for (const RankSlice slice : rejection.slices) nack.add_rank_slices(slice.value());
  *nack.mutable_stream() = ToProto(version.stream);
  return message;
}

v1::Refine RefineMessage(const CutOrder& order) {
  v1::Refine message;
  *message.mutable_stream() = ToProto(order.stream);
  message.set_probe(order.probe);
  message.set_id(order.id);
  ToProto(order.cuts, *message.mutable_tensors());
  return message;
}

}  // namespace dws
