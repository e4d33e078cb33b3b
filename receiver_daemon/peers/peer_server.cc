// A sender may read other senders (access.h), but no receiver: so the caller's role is checked here
// once more.
#include "receiver_daemon/peers/peer_server.h"

#include <chrono>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/full_frame_message.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/listen_address.h"

namespace dws {
namespace {

// Frames are copied by so many threads. One copies faster than most links send.
constexpr size_t kThreads = 2;
constexpr std::chrono::seconds kPeerCallMax{60};

}  // namespace

PeerServer::PeerServer(Options options, const Clock& clock)
    : options_(std::move(options)),
      egress_(options_.bytes_per_second, clock),
      executor_(kThreads, kPeerTransfersMax) {}

Result<std::unique_ptr<PeerServer>> PeerServer::Start(Options options, Lifecycle& lifecycle,
                                                      const Clock& clock) {
  std::unique_ptr<PeerServer> peers(new PeerServer(std::move(options), clock));
  const Options& asked = peers->options_;
  DWS_ASSIGN_OR_RETURN(
      peers->server_,
      GrpcServer::Start({.unix_socket = "",
                         .listen = asked.listen,
                         .insecure = asked.insecure,
                         .credentials = asked.credentials,
                         .job_id = asked.job_id,
                         .services = {{.name = "dws.v1.SyncService", .service = peers.get()}},
                         .lifecycle = &lifecycle}));
  LogInfo("serving_peers", {{"port", peers->port()}, {"address", peers->address()}});
  return peers;
}

// Calls end before the executor that runs their steps.
void PeerServer::Stop() {
  if (server_ != nullptr) server_->Shutdown(limits::kCallGrace);
  executor_.Stop();
}

std::string PeerServer::address() const {
  if (!options_.address.empty()) return options_.address;
  ListenAddress here = ParseListenAddress(options_.listen).value_or(ListenAddress());
  here.port = port();
  return here.ToString();
}

void PeerServer::FillStatus(v1::ServedPeers& status) const {
  status.set_address(address());
  status.set_served_bytes(counters_.served_bytes);
  status.set_transfers(counters_.transfers);
  status.set_ended_by_commit(counters_.other_version);
  status.set_refused(counters_.too_many);
}

Result<PeerTransfer::Order> PeerServer::Open(const grpc::CallbackServerContext& context,
                                             const grpc::ByteBuffer& request) {
  DWS_RETURN_IF_ERROR(CheckPeerRole(PeerOf(context.auth_context().get()), options_.job_id,
                                    Role::kReceive, "a reader of this receiver"));
  // A reader that takes nothing would keep its place for ever.
  if (context.deadline() > std::chrono::system_clock::now() + kPeerCallMax) {
    return InvalidArgumentError("expected a call with a deadline of at most {} s",
                                ToSeconds(kPeerCallMax));
  }
  grpc::ByteBuffer bytes(request);
  v1::FetchFullRequest message;
  if (!grpc::SerializationTraits<v1::FetchFullRequest>::Deserialize(&bytes, &message).ok()) {
    return InvalidArgumentError("the request is not a FetchFullRequest");
  }
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  const TrainerRank rank(message.trainer_rank());
  DWS_ASSIGN_OR_RETURN(
      ServedWeights::Found found,
      weights_.Find({.stream = stream, .version = WeightVersion(message.version())}, rank,
                    FromProto(message.layout_signature())));
  DWS_ASSIGN_OR_RETURN(std::vector<BlockRange> ranges,
                       ParseBlockRanges(message.blocks(), found.layouts->rank(rank)));
  return PeerTransfer::Order{.found = std::move(found), .rank = rank, .ranges = std::move(ranges)};
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* PeerServer::FetchFull(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto* transfer = new PeerTransfer(weights_, executor_, egress_, counters_);
  if (counters_.transfers > kPeerTransfersMax) {
    transfer->Refuse(ResourceExhaustedError("this receiver serves {} others, no more; ask another",
                                            kPeerTransfersMax));
    return transfer;
  }
  Result<PeerTransfer::Order> order = Open(*context, *request);
  if (order.ok()) {
    transfer->Send(*std::move(order));
  } else {
    transfer->Refuse(order.status());
  }
  return transfer;
}

}  // namespace dws
