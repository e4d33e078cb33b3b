#include "receiver_daemon/transfer/grpc/sender_messages.h"

#include <memory>
#include <utility>

#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"

namespace dws {

Result<SenderWelcome> ParseWelcome(const v1::Welcome& message, const std::string& job_id,
                                   const std::string& view) {
  if (message.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "the sender speaks protocol {}.{}, this receiver {}.{}: upgrade the older one",
        message.protocol_major(), message.protocol_minor(), kProtocolMajor, kProtocolMinor);
  }
  if (message.job_id() != job_id && !message.job_id().empty()) {
    return FailedPreconditionError("the sender serves job '{}', this receiver belongs to '{}'",
                                   message.job_id(), job_id);
  }
  if (message.world_size() > limits::kWorldSizeMax) {
    return InvalidArgumentError("the trainer has {} ranks, at most {} are supported",
                                message.world_size(), limits::kWorldSizeMax);
  }
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  DWS_ASSIGN_OR_RETURN(RankLayout layout, FromProto(message.layout()));
  if (layout.view() != view) {
    return FailedPreconditionError(
        "the sender publishes {}, this receiver follows {}",
        layout.view().empty() ? "the trainer's own tensors" : "view '" + layout.view() + "'",
        view.empty() ? "the trainer's own tensors" : "view '" + view + "'");
  }
  // Both sides compute the signature from the layout, so a difference is damage or a defect.
  if (layout.signature() != FromProto(message.layout_signature())) {
    return DataLossError("a layout has signature {}, its sender says {}",
                         ToString(layout.signature()),
                         ToString(FromProto(message.layout_signature())));
  }
  return SenderWelcome{.stream = stream,
                       .trainer_rank = TrainerRank(message.trainer_rank()),
                       .world_size = message.world_size(),
                       .rank_epoch = RankEpoch(message.rank_epoch()),
                       .layout = std::make_shared<const RankLayout>(std::move(layout))};
}

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
