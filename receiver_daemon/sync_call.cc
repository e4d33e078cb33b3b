#include "receiver_daemon/sync_call.h"

#include <utility>

#include "common/model/limits.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {

std::shared_ptr<SyncCall> SyncCall::Start(v1::SyncService::Stub& stub, v1::SyncUp hello,
                                          Callbacks callbacks) {
  std::shared_ptr<SyncCall> call(new SyncCall(std::move(callbacks)));
  call->self_ = call;
  stub.async()->Sync(&call->context_, call.get());
  call->AddHold();
  call->StartRead(&call->down_);
  call->Send(std::move(hello));
  call->StartCall();
  return call;
}

void SyncCall::Send(v1::SyncUp message) {
  {
    MutexLock lock(mutex_);
    if (ending_ || queue_.size() >= limits::kSyncQueueMax) return;
    queue_.push_back(std::move(message));
  }
  Pump();
}

void SyncCall::Pump() {
  {
    MutexLock lock(mutex_);
    if (writing_ || ending_ || queue_.empty()) return;
    writing_ = true;
    up_ = std::move(queue_.front());
    queue_.pop_front();
  }
  StartWrite(&up_);
}

void SyncCall::EndWrites() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    // A write in flight is answered yet, and lets go of the hold then.
    if (writing_ || !held_) return;
    held_ = false;
  }
  RemoveHold();
}

void SyncCall::Cancel(const Status& reason) {
  {
    MutexLock lock(mutex_);
    if (reason_.ok()) reason_ = reason;
  }
  context_.TryCancel();
}

void SyncCall::OnReadDone(bool ok) {
  if (!ok) return EndWrites();
  if (!peer_.has_value()) peer_ = PeerOf(context_.auth_context().get());
  if (const Status status = callbacks_.on_message(down_, *peer_); !status.ok()) {
    Cancel(status);
    return EndWrites();
  }
  StartRead(&down_);
}

void SyncCall::OnWriteDone(bool ok) {
  bool ending = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    ending = ending_;
  }
  if (ending || !ok) return EndWrites();
  Pump();
}

void SyncCall::OnDone(const grpc::Status& status) {
  Status reason = FromGrpc(status);
  {
    MutexLock lock(mutex_);
    if (!reason_.ok()) reason = reason_;
  }
  if (reason.ok()) reason = UnavailableError("the sender ended the stream");
  callbacks_.on_done(reason);
  self_.reset();  // may be the last reference: nothing after this line
}

}  // namespace dws
