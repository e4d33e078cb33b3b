// A slice is sent either completely from the open delta or completely from the log, so sent_ needs
// only one bit for each slice.
#include "sender_daemon/serve/transfers/early_stream.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/data_message.h"
#include "common/service/grpc/grpc_status.h"
#include "sender_daemon/serve/transfers/full_stream.h"

namespace dws {

void EarlyStream::Send(EarlyOrder order) {
  order_ = std::move(order);
  sent_.resize(order_.state->layout().slice_count());
  if (order_.open == nullptr) return OpenRetained();
  order_.open->OnEnd(this, [this] { paced_.Hurry(); });
  Next();
}

void EarlyStream::OnDone() {
  if (order_.open != nullptr) order_.open->Leave(this);
  delete this;
}

void EarlyStream::OnCancel() {
  cancelled_ = true;
  paced_.Cancel();
}

void EarlyStream::OnWriteDone(bool ok) {
  message_.Clear();
  if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the receiver hung up"});
  Next();
}

void EarlyStream::Next() {
  if (retained_ != nullptr) return WriteRetained();
  if (order_.open->stage() != OpenDelta::Stage::kGivenUp && WriteFramed()) return;
  const uint64_t version = order_.version.value();
  switch (order_.open->stage()) {
    case OpenDelta::Stage::kGivenUp:
      return Finish(ToGrpc(AbortedError("the capture of version {} was given up", version)));
    case OpenDelta::Stage::kPublished:
      // On the executor: parsing a manifest takes long.
      if (!executor_.Post([this] { OpenRetained(); })) Finish(ToGrpc(ServesTooMany()));
      return;
    case OpenDelta::Stage::kOpen:
      break;
  }
  if (cancelled_ || !wait_.Goes()) {
    return Finish(ToGrpc(AbortedError("the capture of version {} has stalled", version)));
  }
  paced_.After(wait_.Poll(), [this] { Next(); });
}

bool EarlyStream::HasFramed() {
  while (sending_ == nullptr || next_frame_ == sending_->delta.frames.size()) {
    sending_ = nullptr;
    const std::optional<FramedSlice> framed = order_.open->At(next_framed_);
    if (!framed.has_value()) return false;
    ++next_framed_;
    if (!Selects(order_.only, framed->slice)) continue;
    sending_ = framed->Of(order_.profile == order_.open->profile());
    sent_[framed->slice.value()] = true;
    next_frame_ = 0;
  }
  return true;
}

bool EarlyStream::WriteFramed() {
  BeginChunk();
  while (HasFramed()) {
    const FrameEntry& entry = sending_->delta.frames[next_frame_];
    if (!Fits(entry)) break;
    ++next_frame_;
    AddFrame(sending_->delta, entry,
             ByteSpan(sending_->bytes).subspan(entry.offset, entry.size_bytes), sending_);
  }
  if (chunk_.frames().empty()) return false;
  WriteChunk();
  return true;
}

void EarlyStream::OpenRetained() {
  retained_ = order_.state->log->Find(order_.version);
  if (retained_ == nullptr) {
    return Finish(ToGrpc(AbortedError("version {} is no longer retained; take a newer one",
                                      order_.version.value())));
  }
  const std::vector<std::byte>& object = retained_->object_of(order_.profile);
  object_ = object;
  header_ = retained_->header;
  manifest_ = &retained_->manifest;
  if (&object != &retained_->object) {
    auto header = ParseObjectHeader(object);
    if (!header.ok()) return Finish(ToGrpc(header.status()));
    auto manifest = ParseObjectManifest(object, order_.state->layout());
    if (!manifest.ok()) return Finish(ToGrpc(manifest.status()));
    header_ = *header;
    parsed_ = *std::move(manifest);
    manifest_ = &parsed_;
  }
  next_frame_ = 0;
  WriteRetained();
}

const SliceDelta* EarlyStream::NextRetained() {
  for (; next_slice_ < manifest_->slices.size(); ++next_slice_, next_frame_ = 0) {
    const SliceDelta& slice = manifest_->slices[next_slice_];
    const bool wanted = !sent_[slice.slice.value()] && Selects(order_.only, slice.slice);
    if (wanted && next_frame_ < slice.frames.size()) return &slice;
  }
  return nullptr;
}

void EarlyStream::WriteRetained() {
  BeginChunk();
  while (const SliceDelta* slice = NextRetained()) {
    const FrameEntry& entry = slice->frames[next_frame_];
    if (!Fits(entry)) break;
    ++next_frame_;
    AddFrame(*slice, entry, FrameBytes(object_, header_, entry), retained_);
  }
  if (!chunk_.frames().empty()) return WriteChunk();
  const ByteSpan start = object_.first(header_.total_bytes() - header_.frames_bytes);
  if (start_sent_ == start.size()) return Finish(grpc::Status::OK);
  const ByteSpan next = start.subspan(
      start_sent_, std::min<uint64_t>(limits::kFetchChunkBytesMax, start.size() - start_sent_));
  chunk_.set_object_bytes(start.size());
  chunk_.set_offset(start_sent_);
  AddData(next, retained_);
  start_sent_ += next.size();
  WriteChunk();
}

bool EarlyStream::Fits(const FrameEntry& entry) const {
  return chunk_.frames().empty() || entry.size_bytes <= limits::kFetchChunkBytesMax - data_bytes_;
}

void EarlyStream::BeginChunk() {
  chunk_.Clear();
  data_.clear();
  data_bytes_ = 0;
}

void EarlyStream::AddData(ByteSpan bytes, std::shared_ptr<const void> owner) {
  data_.push_back(SharedSlice(bytes, std::move(owner)));
  data_bytes_ += bytes.size();
}

void EarlyStream::AddFrame(const SliceDelta& slice, const FrameEntry& entry, ByteSpan frame,
                           std::shared_ptr<const void> owner) {
  AddData(frame, std::move(owner));
  v1::EarlyFrame& head = *chunk_.add_frames();
  head.set_rank_slice(slice.slice.value());
  *head.mutable_entry() = ToProto(entry);
  head.mutable_entry()->clear_offset();
  if (!slice.classes.has_value()) return;
  const ClassTableBytes bytes = PackClassTable(*slice.classes);
  head.set_class_table(bytes.data(), ClassTableSize(*slice.classes));
}

void EarlyStream::WriteChunk() {
  chunk_.set_waited(wait_.End());
  metrics_.OnServed(ServedKind::kDelta, data_bytes_);
  message_ = DataMessage(chunk_, v1::FetchChunk::kDataFieldNumber, data_);
  data_.clear();
  paced_.At(data_bytes_, [this] { StartWrite(&message_); });
}

}  // namespace dws
