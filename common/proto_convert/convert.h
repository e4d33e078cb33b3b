// Converts wire messages to model values and back. Everything that arrives is validated here: code
// above this header sees checked values only. (common/delta/objects/manifest is the one exception.)
#pragma once

#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "common/model/refinement.h"
#include "common/model/stream_id.h"
#include "proto/delta.pb.h"

namespace dws {

v1::StreamId ToProto(const StreamId& stream);
v1::Digest ToProto(const Digest& digest);
v1::Cuts ToProto(const Cuts& cuts);
v1::TensorSpec ToProto(const TensorSpec& spec);
v1::RankLayout ToProto(const RankLayout& layout);
v1::FrameEntry ToProto(const FrameEntry& entry);

// INVALID_ARGUMENT: incarnation 0 or id 0, as in an unset message.
Result<StreamId> FromProto(const v1::StreamId& stream);
// Without checks: an unset message becomes zeros.
StreamId AsStands(const v1::StreamId& stream);
Digest FromProto(const v1::Digest& digest);
// INVALID_ARGUMENT: an unknown dtype, or what RankLayout::Create refuses.
Result<RankLayout> FromProto(const v1::RankLayout& layout);
// INVALID_ARGUMENT: dimensions or boundaries do not ascend, a tensor is there twice, or there are
// more than limits allow.
Result<CutWishes> FromProto(const google::protobuf::RepeatedPtrField<v1::TensorCuts>& tensors);
void ToProto(const CutWishes& cuts, google::protobuf::RepeatedPtrField<v1::TensorCuts>& tensors);
FrameEntry FromProto(const v1::FrameEntry& entry);
// INVALID_ARGUMENT: a number this version does not know.
Result<DType> FromProto(v1::DType dtype);

}  // namespace dws
