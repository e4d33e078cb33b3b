// The service for receivers: the Sync stream, Describe, Fetch and FetchFull. Thin shells: the hub
// decides what to announce; the log and the full reader make the bytes. Reactions never block: work
// that may block goes to an executor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/base/threads/executor.h"
#include "common/service/grpc/egress_limit.h"
#include "common/service/grpc/raw_sync_service.h"
#include "common/service/sockets/handle_socket.h"
#include "common/transport/fabric/fabric_host.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/serve/gpu_loan.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/serve/sync_stream.h"

namespace dws {

// The RPCs of receivers: Sync streams, deltas, descriptions, full tensors.
class SyncServiceImpl final : public RawSyncService {
 public:
  // `streams` has the parts that Sync streams use. `delta_executor` prepares deltas.
  // `full_executor` reads the snapshot, which waits for captures; it is separate so that new
  // receivers do not delay those that follow already. `full_transfers` counts the FetchFull streams
  // of all services of the sender. `handles` passes the descriptor of the snapshot, `loans` lends
  // its copies on GPUs, `fabric` its memory. `egress` limits what is sent.
  SyncServiceImpl(const SyncStream::Parts& streams, HandleSocket& handles, GpuLoans& loans,
                  FabricHost& fabric, EgressLimit& egress, Executor& delta_executor,
                  Executor& full_executor, std::atomic<size_t>& full_transfers)
      : streams_(streams),
        hub_(streams.hub),
        metrics_(streams.metrics),
        handles_(handles),
        loans_(loans),
        fabric_(fabric),
        egress_(egress),
        delta_executor_(delta_executor),
        full_executor_(full_executor),
        full_transfers_(full_transfers) {}

  grpc::ServerBidiReactor<v1::SyncUp, v1::SyncDown>* Sync(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeReply* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchFull(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* OpenSnapshot(grpc::CallbackServerContext* context,
                                         const v1::OpenSnapshotRequest* request,
                                         v1::OpenSnapshotReply* reply) override;
  grpc::ServerUnaryReactor* OpenFabric(grpc::CallbackServerContext* context,
                                       const v1::OpenFabricRequest* request,
                                       v1::OpenFabricReply* reply) override;
  grpc::ServerUnaryReactor* OpenGpuCopies(grpc::CallbackServerContext* context,
                                          const v1::OpenGpuCopiesRequest* request,
                                          v1::OpenGpuCopiesReply* reply) override;
  grpc::ServerUnaryReactor* Peers(grpc::CallbackServerContext* context,
                                  const v1::PeersRequest* request, v1::PeersReply* reply) override;

 private:
  const SyncStream::Parts streams_;
  ReceiverHub& hub_;
  SenderMetrics& metrics_;
  HandleSocket& handles_;
  GpuLoans& loans_;
  FabricHost& fabric_;
  EgressLimit& egress_;
  Executor& delta_executor_;
  Executor& full_executor_;
  std::atomic<size_t>& full_transfers_;
};

}  // namespace dws
