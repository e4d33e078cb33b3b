// gRPC tells OnCancel only when the method has returned this object, so `waiter_` is set by then.
#include "sender_daemon/on_demand/objects/object_stream.h"

#include <algorithm>

#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {

grpc::Status RefusedBecauseOf(TrainerRank rank, const Status& status) {
  v1::ObjectRefusal refusal;
  refusal.set_trainer_rank(rank.value());
  const grpc::Status plain = ToGrpc(status);
  return {plain.error_code(), plain.error_message(), refusal.SerializeAsString()};
}

ObjectStore::Wanted FromProto(const v1::FetchObjectRequest& request) {
  return {.process = request.process(),
          .key = {.name = request.key().name(), .number = request.key().number()},
          .newer = request.newer(),
          .size_bytes_max = request.size_bytes_max()};
}

ObjectStream* ObjectStream::Start(ObjectStore& store, const ObjectStore::Wanted& wanted,
                                  ObjectTraffic* traffic) {
  auto* const stream = new ObjectStream(&store, traffic);
  stream->waiter_ = store.Fetch(
      wanted, [stream](const ObjectStore::Answer& answer) { stream->OnAnswer(answer); });
  return stream;
}

ObjectStream* ObjectStream::Refuse(const grpc::Status& status) {
  auto* const stream = new ObjectStream(nullptr, nullptr);
  stream->Finish(status);
  return stream;
}

void ObjectStream::OnAnswer(const ObjectStore::Answer& answer) {
  if (!answer.status.ok()) return Finish(RefusedBecauseOf(store_->rank(), answer.status));
  object_ = answer.object;
  chunk_.set_process(object_->process);
  chunk_.set_number(object_->number);
  chunk_.set_size_bytes(object_->bytes.size());
  *chunk_.mutable_digest() = ToProto(object_->digest);
  Write();
}

void ObjectStream::Write() {
  const size_t size = std::min(limits::kObjectChunkBytes, object_->bytes.size() - sent_);
  chunk_.set_data(object_->bytes.data() + sent_, size);
  sent_ += size;
  if (traffic_ != nullptr) traffic_->OnSent(chunk_.ByteSizeLong());
  StartWrite(&chunk_);
}

void ObjectStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(ToGrpc(CancelledError("the rank that asked hung up")));
  chunk_.Clear();
  if (sent_ == object_->bytes.size()) return Finish(grpc::Status::OK);
  Write();
}

// If an answer has come, the write fails, or the call has ended already.
void ObjectStream::OnCancel() {
  if (store_ == nullptr || !store_->Forget(waiter_)) return;
  Finish(ToGrpc(CancelledError("the rank that asked hung up")));
}

}  // namespace dws
