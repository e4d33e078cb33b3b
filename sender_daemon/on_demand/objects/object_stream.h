// The end of a Fetch that serves an object of this sender's rank.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>

#include "proto/objects.grpc.pb.h"
#include "sender_daemon/on_demand/objects/object_store.h"

namespace dws {

// The status of a Fetch that fails because of this rank: with an ObjectRefusal.
grpc::Status RefusedBecauseOf(TrainerRank rank, const Status& status);

// What a message asks for.
ObjectStore::Wanted FromProto(const v1::FetchObjectRequest& request);

// Sends one object, once it is there. Lifecycle: owns itself until the call has ended; `store`
// outlives it. Threads: gRPC's, and that of the store's `done`.
class ObjectStream final : public grpc::ServerWriteReactor<v1::ObjectChunk> {
 public:
  static ObjectStream* Start(ObjectStore& store, const ObjectStore::Wanted& wanted);
  // Ends at once.
  static ObjectStream* Refuse(const grpc::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  explicit ObjectStream(ObjectStore* store) : store_(store) {}
  void OnAnswer(const ObjectStore::Answer& answer);
  void Write();

  ObjectStore* const store_;
  uint64_t waiter_ = 0;
  RankObjectPtr object_;
  size_t sent_ = 0;
  v1::ObjectChunk chunk_;
};

}  // namespace dws
