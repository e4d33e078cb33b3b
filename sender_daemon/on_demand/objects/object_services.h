// The services by which ranks give each other objects: for the rank beside this sender, and for the
// senders of the other ranks.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/latest_stream.h"
#include "proto/objects.grpc.pb.h"
#include "proto/sender_status.pb.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/objects/object_store.h"
#include "sender_daemon/on_demand/objects/object_traffic.h"

namespace dws {

// Lifecycle: Stop ends its calls, before the server and the parts end. Threads: safe from any.
class ObjectServiceImpl final : public v1::ObjectService::CallbackService {
 public:
  // All outlive it.
  struct Parts {
    ObjectStore& store;
    ObjectTraffic& traffic;
    OwnerLinks& owners;
    const Clock& clock;
  };
  ObjectServiceImpl(std::string job_id, const Parts& parts)
      : job_id_(std::move(job_id)), parts_(parts) {}

  void Stop();
  void FillStatus(v1::ObjectsStatus& status) const;

  grpc::ServerWriteReactor<v1::ObjectsAttached>* Attach(
      grpc::CallbackServerContext* context, const v1::AttachObjectsRequest* request) override;
  grpc::ServerReadReactor<v1::PutObjectChunk>* Put(grpc::CallbackServerContext* context,
                                                   v1::PutObjectReply* reply) override;
  grpc::ServerWriteReactor<v1::ObjectChunk>* Fetch(grpc::CallbackServerContext* context,
                                                   const v1::FetchObjectRequest* request) override;

 private:
  using Attachment = LatestStream<v1::ObjectsAttached>;
  dws::Status CheckAttach(const v1::AttachObjectsRequest& request) const;

  const std::string job_id_;
  const Parts parts_;
  Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t newest_ GUARDED_BY(mutex_) = 0;         // process
  Attachment::Ptr attachment_ GUARDED_BY(mutex_);  // its call
};

// For the senders of other ranks. Lifecycle: stores and traffic outlive it. Threads: safe from any.
class PeerObjectServiceImpl final : public v1::PeerObjectService::CallbackService {
 public:
  // `exchanged`: the objects of this sender itself (object_exchange.h); null: there are none.
  PeerObjectServiceImpl(std::string job_id, ObjectStore& store, ObjectTraffic& traffic,
                        ObjectStore* exchanged = nullptr)
      : job_id_(std::move(job_id)), store_(store), traffic_(traffic), exchanged_(exchanged) {}

  grpc::ServerWriteReactor<v1::ObjectChunk>* Fetch(
      grpc::CallbackServerContext* context, const v1::FetchPeerObjectRequest* request) override;

 private:
  const std::string job_id_;
  ObjectStore& store_;
  ObjectTraffic& traffic_;
  ObjectStore* const exchanged_;
};

}  // namespace dws
