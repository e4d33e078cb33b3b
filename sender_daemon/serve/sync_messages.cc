#include "sender_daemon/serve/sync_messages.h"

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"

namespace dws {

void FillWelcome(const RankState& state, v1::Welcome& welcome) {
  *welcome.mutable_stream() = ToProto(state.stream);
  welcome.set_trainer_rank(state.trainer_rank.value());
  welcome.set_world_size(state.world_size);
  welcome.set_rank_epoch(state.rank_epoch.value());
  *welcome.mutable_layout() = ToProto(state.layout());
  *welcome.mutable_layout_signature() = ToProto(state.layout().signature());
  welcome.set_protocol_major(kProtocolMajor);
  welcome.set_protocol_minor(kProtocolMinor);
}

void FillAnnounce(const RankState& state, v1::Announce& announce) {
  *announce.mutable_stream() = ToProto(state.stream);
  announce.set_rank_epoch(state.rank_epoch.value());
  // Read once: versions are appended meanwhile, and the object has to be the last version's.
  RetainedVersionPtr newest;
  for (const RetainedVersionPtr& version : state.log->All()) {
    newest = version;
    announce.add_versions(version->version.value());
    announce.set_object_bytes(version->object.size());
    *announce.mutable_state_token() = ToProto(version->manifest.state_token);
  }
  // A small delta goes inside the announcement, so that no fetch is needed.
  if (newest == nullptr || !newest->base.has_value()) return;
  if (newest->object.size() > limits::kInlineObjectBytesMax) return;
  announce.set_object_base(newest->base->value());
  announce.set_object(newest->object.data(), newest->object.size());
}

void FillReplacing(const RankState& state, bool deltas, v1::Replacing& replacing) {
  *replacing.mutable_stream() = ToProto(state.stream);
  replacing.set_rank_epoch(state.rank_epoch.value());
  if (const auto full = state.snapshot->in_flight().replacing(); full.has_value()) {
    return replacing.set_version(full->value());
  }
  if (!deltas) return;
  const std::shared_ptr<OpenDelta> delta = state.snapshot->in_flight().open_delta();
  if (delta == nullptr || !delta->fetchable()) return;
  replacing.set_version(delta->version().value());
  replacing.set_base_version(delta->base().value());
}

}  // namespace dws
