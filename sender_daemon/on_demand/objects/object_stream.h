// The end of a Fetch that serves an object of this sender's rank.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>

#include "proto/objects.grpc.pb.h"
#include "sender_daemon/on_demand/objects/object_store.h"
#include "sender_daemon/on_demand/objects/object_traffic.h"

namespace dws {

// The status of a Fetch that fails because of this rank: with an ObjectRefusal.
grpc::Status RefusedBecauseOf(TrainerRank rank, const Status& status);

// What a message asks for.
ObjectStore::Wanted FromProto(const v1::FetchObjectRequest& request);

// Sends one object, once it is there. Lifecycle: owns itself until the call has ended; what Start
// gets outlives it. Threads: gRPC's, and that of the store's `done`.
class ObjectStream final : public grpc::ServerWriteReactor<v1::ObjectChunk> {
 public:
  // `traffic`: of senders; null: the rank of this one asks.
  static ObjectStream* Start(ObjectStore& store, const ObjectStore::Wanted& wanted,
                             ObjectTraffic* traffic = nullptr);
  // Ends at once.
  static ObjectStream* Refuse(const grpc::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  ObjectStream(ObjectStore* store, ObjectTraffic* traffic) : store_(store), traffic_(traffic) {}
  void OnAnswer(const ObjectStore::Answer& answer);
  void Write();

  ObjectStore* const store_;
  ObjectTraffic* const traffic_;
  uint64_t waiter_ = 0;
  RankObjectPtr object_;
  size_t sent_ = 0;
  v1::ObjectChunk chunk_;
};

}  // namespace dws
