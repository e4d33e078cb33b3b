#include "sender_daemon/serve/sync_messages.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

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

Result<CutWishes> ParseCuts(const v1::Refine& message) {
  if (static_cast<size_t>(message.tensors_size()) > limits::kTensorsMax) {
    return InvalidArgumentError("cuts of {} tensors, at most {} are supported",
                                message.tensors_size(), limits::kTensorsMax);
  }
  CutWishes wishes;
  for (const v1::TensorCuts& wish : message.tensors()) {
    if (wish.tensor().size() > limits::kTensorNameBytesMax ||
        wish.cuts_size() > static_cast<int>(limits::kTensorRankMax)) {
      return InvalidArgumentError("cuts of {} dimensions of a tensor whose name has {} bytes",
                                  wish.cuts_size(), wish.tensor().size());
    }
    std::vector<Cuts> cuts;
    for (const v1::Cuts& along : wish.cuts()) {
      if (static_cast<size_t>(along.at_size()) > limits::kCutsMax) {
        return InvalidArgumentError("tensor '{}': {} cuts on dim {}, at most {} are supported",
                                    wish.tensor(), along.at_size(), along.dim(), limits::kCutsMax);
      }
      const bool ascend = cuts.empty() || cuts.back().dim < along.dim();
      cuts.push_back({.dim = along.dim(), .at = {along.at().begin(), along.at().end()}});
      if (ascend && std::ranges::is_sorted(cuts.back().at, std::ranges::less_equal())) continue;
      return InvalidArgumentError(
          "cuts of tensor '{}' on dim {}: expected ascending dimensions and boundaries",
          wish.tensor(), along.dim());
    }
    if (!wishes.emplace(wish.tensor(), std::move(cuts)).second) {
      return InvalidArgumentError("cuts of tensor '{}' twice in one message", wish.tensor());
    }
  }
  return wishes;
}

}  // namespace dws
