// The listener for other receivers: of SyncService it has FetchFull alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/service/grpc/egress_limit.h"
#include "common/service/grpc/grpc_server.h"
#include "common/service/grpc/raw_sync_service.h"
#include "proto/receiver_status.pb.h"
#include "receiver_daemon/peers/peer_transfer.h"
#include "receiver_daemon/weights/served_weights.h"

namespace dws {

// Lifecycle: serves from Start until Stop or the destructor. Threads: safe from any.
class PeerServer final : public RawSyncService {
 public:
  struct Options {
    std::string listen;   // --serve-peers
    std::string address;  // --peer-address; empty: that of `listen`, which is then one of this host
    uint64_t bytes_per_second = 0;  // at most; 0: no limit
    bool insecure = false;
    std::shared_ptr<Credentials> credentials;  // null: no TLS
    std::string job_id;
  };
  // All outlive it. Errors as GrpcServer::Start.
  static Result<std::unique_ptr<PeerServer>> Start(Options options, Lifecycle& lifecycle,
                                                   const Clock& clock);
  ~PeerServer() override { Stop(); }
  void Stop();

  // What the worker offers here is served.
  ServedWeights& weights() { return weights_; }
  // HOST:PORT where others reach it.
  std::string address() const;
  uint16_t port() const { return server_->port().value_or(0); }
  void FillStatus(v1::ServedPeers& status) const;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchFull(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;

 private:
  PeerServer(Options options, const Clock& clock);
  Result<PeerTransfer::Order> Open(const grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& request);

  const Options options_;
  ServedWeights weights_;
  EgressLimit egress_;
  PeerCounters counters_;
  Executor executor_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace dws
