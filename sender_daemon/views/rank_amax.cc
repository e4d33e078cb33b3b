// Parts are named by the tensor's whole spec, so ranks that cut a tensor differently, as while a
// layout is refined, have no part in common, and the collection is not complete.
#include "sender_daemon/views/rank_amax.h"

#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "common/proto_convert/convert.h"
#include "proto/view_amax.pb.h"
#include "sender_daemon/views/steps.h"

namespace dws {
namespace {

using quantise::ViewLayout;

std::map<size_t, const ViewLayout::MatrixTensor*> ByShard(const ViewLayout& view) {
  std::map<size_t, const ViewLayout::MatrixTensor*> tensors;
  for (const ViewLayout::MatrixTensor& tensor : view.matrix_tensors()) {
    tensors[tensor.shard] = &tensor;
  }
  return tensors;
}

}  // namespace

std::vector<std::byte> AmaxMessage(const AmaxSubject& subject, const ViewLayout& view,
                                   const RankLayout& trainer, const MatrixAmax& amax) {
  const auto tensors = ByShard(view);
  v1::ViewAmax message;
  *message.mutable_stream() = ToProto(subject.stream);
  message.set_version(subject.version.value());
  message.set_view(view.layout().view());
  for (const ViewLayout::Matrices& matrices : view.matrices()) {
    if (!matrices.IsDivided()) continue;
    for (const size_t s : matrices.slices) {
      const RankLayout::SliceEntry& entry = trainer.slice(view.slices()[s].from);
      v1::SliceAmax& part = *message.add_slices();
      *part.mutable_tensor() = ToProto(tensors.at(entry.shard)->spec);
      part.set_slice(entry.slice);
      std::string& bytes = *part.mutable_amax();
      for (const uint16_t magnitude : amax.OfPart(s)) {
        bytes.push_back(static_cast<char>(magnitude & 0xFF));
        bytes.push_back(static_cast<char>(magnitude >> 8));
      }
    }
  }
  std::vector<std::byte> bytes(message.ByteSizeLong());
  DWS_CHECK(message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size())));
  return bytes;
}

OtherAmax::OtherAmax(AmaxSubject subject, const ViewLayout& view, const RankLayout& trainer)
    : subject_(subject),
      view_(view),
      trainer_(trainer),
      amax_(view.matrices().size()),
      known_(view.matrices().size()) {
  for (size_t m = 0; m < amax_.size(); ++m) {
    if (!view.matrices()[m].IsDivided()) continue;
    amax_[m].resize(view.matrices()[m].count);
    known_[m].resize(view.matrices()[m].parts);
  }
  const auto by_shard = ByShard(view);
  for (const auto& [shard, tensor] : by_shard) {
    tensors_[{tensor->spec.lane0, tensor->spec.lane1}] = tensor;
  }
  for (const ViewLayout::Slice& slice : view.slices()) {
    if (!slice.matrices.has_value()) continue;
    const RankLayout::SliceEntry& entry = trainer.slice(slice.from);
    const auto place = PlaceOf(*by_shard.at(entry.shard), entry.slice);
    if (place.has_value()) known_[place->matrices][place->part] = true;
  }
}

std::optional<OtherAmax::Place> OtherAmax::PlaceOf(const ViewLayout::MatrixTensor& tensor,
                                                   uint32_t slice) const {
  const auto found = tensor.matrices.find(slice / tensor.parts);
  if (found == tensor.matrices.end() || !view_.matrices()[found->second].IsDivided()) {
    return std::nullopt;
  }
  return Place{.matrices = found->second, .part = tensor.first + slice % tensor.parts};
}

Status OtherAmax::Add(ByteSpan bytes) {
  v1::ViewAmax message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgumentError("expected the amax of a view's matrices, found no such message");
  }
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  if (stream != subject_.stream || message.version() != subject_.version.value() ||
      message.view() != view_.layout().view()) {
    return InvalidArgumentError(
        "expected the amax of view '{}' at version {} of stream {}, found that of view '{}' at "
        "version {} of stream {}",
        view_.layout().view(), subject_.version.value(), ToString(subject_.stream),
        message.view().substr(0, 256), message.version(), ToString(stream));
  }
  for (const v1::SliceAmax& part : message.slices()) {
    const auto tensor = tensors_.find({part.tensor().lane0(), part.tensor().lane1()});
    if (tensor == tensors_.end()) continue;
    const std::optional<Place> place = PlaceOf(*tensor->second, part.slice());
    if (!place.has_value()) continue;
    const std::string& name = trainer_.shards()[tensor->second->shard].tensor.name;
    std::vector<uint16_t>& amax = amax_[place->matrices];
    if (part.amax().size() != amax.size() * sizeof(uint16_t)) {
      return InvalidArgumentError(
          "tensor {}, slice {}: expected the amax of {} matrices, found {} bytes", name,
          part.slice(), amax.size(), part.amax().size());
    }
    if (known_[place->matrices][place->part]) {
      return InvalidArgumentError(
          "tensor {}: slice {} belongs to two trainer ranks, expected one: its shards overlap",
          name, part.slice());
    }
    known_[place->matrices][place->part] = true;
    for (size_t i = 0; i < amax.size(); ++i) {
      const auto magnitude = LoadLe<uint16_t>(AsBytes(part.amax()).data() + i * sizeof(uint16_t));
      if (magnitude != Magnitude(magnitude)) {
        return InvalidArgumentError(
            "tensor {}, slice {}: expected a magnitude of BF16, without a sign, found bits {:#06x}",
            name, part.slice(), magnitude);
      }
      amax[i] = std::max(amax[i], magnitude);
    }
  }
  return OkStatus();
}

Result<MatrixAmax::Others> OtherAmax::Finish() && {
  for (size_t m = 0; m < known_.size(); ++m) {
    const auto lacking = std::ranges::find(known_[m], false);
    if (lacking == known_[m].end()) continue;
    const RankSlice slice = view_.slices()[view_.matrices()[m].slices.front()].from;
    return FailedPreconditionError(
        "tensor {}: expected every part of its matrices in one of the trainer's ranks, found {} of "
        "{}: a rank lacks it, or cuts it, or a tensor that shares its scale, differently",
        trainer_.tensor(slice).name, std::ranges::count(known_[m], true), known_[m].size());
  }
  return std::move(amax_);
}

}  // namespace dws
