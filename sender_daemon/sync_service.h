// What receivers talk to: the Sync stream, Describe, Fetch and FetchFull. Thin shells: the hub decides what to
// announce, the log and the full reader make the bytes. Reactions never block: work that may goes to an executor.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/executor.h"
#include "proto/sync.grpc.pb.h"
#include "sender_daemon/receiver_hub.h"

namespace dws {

class SyncServiceImpl final : public v1::SyncService::CallbackService {
 public:
  SyncServiceImpl(ReceiverHub& hub, Executor& executor) : hub_(hub), executor_(executor) {}

  grpc::ServerBidiReactor<v1::SyncUp, v1::SyncDown>* Sync(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeReply* reply) override;
  grpc::ServerWriteReactor<v1::FetchChunk>* Fetch(grpc::CallbackServerContext* context,
                                                  const v1::FetchRequest* request) override;
  grpc::ServerWriteReactor<v1::FullFrame>* FetchFull(grpc::CallbackServerContext* context,
                                                     const v1::FetchFullRequest* request) override;

 private:
  ReceiverHub& hub_;
  Executor& executor_;
};

}  // namespace dws
