// Nothing of a Welcome is used before all of it was checked: its layout decides how bytes are read.
#include "common/sources/sender/welcome.h"

#include <memory>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"

namespace dws {

Result<SenderWelcome> ParseWelcome(const v1::Welcome& message, const std::string& job_id,
                                   const std::string& view, std::string_view self) {
  if (message.protocol_major() != kProtocolMajor) {
    return UnimplementedError("the sender speaks protocol {}.{}, {} {}.{}: upgrade the older one",
                              message.protocol_major(), message.protocol_minor(), self,
                              kProtocolMajor, kProtocolMinor);
  }
  if (message.job_id() != job_id && !message.job_id().empty()) {
    return FailedPreconditionError("the sender serves job '{}', {} belongs to '{}'",
                                   message.job_id(), self, job_id);
  }
  if (message.world_size() > limits::kWorldSizeMax) {
    return InvalidArgumentError("the trainer has {} ranks, at most {} are supported",
                                message.world_size(), limits::kWorldSizeMax);
  }
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  DWS_ASSIGN_OR_RETURN(RankLayout layout, FromProto(message.layout()));
  if (layout.view() != view) {
    return FailedPreconditionError(
        "the sender publishes {}, {} follows {}",
        layout.view().empty() ? "the trainer's own tensors" : "view '" + layout.view() + "'", self,
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

}  // namespace dws
