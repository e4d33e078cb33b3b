// Connections end first, so that nothing waits for other senders while the rest ends.
#include "sender_daemon/on_demand/on_demand.h"

#include <utility>

#include "common/base/check.h"
#include "common/memory/available_memory.h"

namespace dws {

OnDemand::OnDemand(Options options, ThreadPool& pool, const Clock& clock)
    : options_(std::move(options)),
      pool_(pool),
      clock_(clock),
      objects_({.rank = options_.rank,
                .bytes_max = options_.object_bytes,
                .epoch = options_.epoch.value()}) {
  if (options_.peers.empty()) return;
  engine_ = std::make_unique<MinibatchEngine>(
      MinibatchEngine::Options{.job_id = options_.job_id,
                               .rank = options_.rank,
                               .ranks = static_cast<uint32_t>(options_.peers.size()),
                               .epoch = options_.epoch,
                               .peer_timeout = options_.peer_timeout,
                               .accumulate_bytes = options_.host_accumulate_bytes},
      pool_, clock_);
}

std::unique_ptr<VersionSink> OnDemand::MakeSink() {
  auto peers =
      std::make_unique<TrainPeers>(options_.job_id, options_.rank, engine_.get(),
                                   OwnerHost{.id = options_.host_id,
                                             .cache_bytes = options_.host_cache_bytes,
                                             .accumulate_bytes = options_.host_accumulate_bytes});
  peers_ = peers.get();
  return peers;
}

Status OnDemand::Start(const Parts& parts) {
  DWS_CHECK(peers_ != nullptr);
  if (engine_ != nullptr) DWS_RETURN_IF_ERROR(Connect(parts));
  train_service_ =
      std::make_unique<TrainServiceImpl>(TrainServiceImpl::Parts{.peers = *peers_,
                                                                 .engine = engine_.get(),
                                                                 .cache = cache_.get(),
                                                                 .handles = &parts.handles,
                                                                 .executor = &parts.reads});
  return OkStatus();
}

Status OnDemand::Connect(const Parts& parts) {
  const uint64_t left = AvailableMemoryBytes();
  if (options_.host_cache_bytes > left ||
      options_.host_accumulate_bytes > left - options_.host_cache_bytes) {
    return ResourceExhaustedError(
        "--host-cache-bytes is {} and --host-accumulate-bytes {}, but only {} bytes of memory are "
        "left",
        options_.host_cache_bytes, options_.host_accumulate_bytes, left);
  }
  OwnerLinks::Options to;
  to.job_id = options_.job_id;
  to.self = options_.rank;
  to.addresses = options_.peers;
  to.tls = parts.tls;
  to.host_id = options_.host_id;
  DWS_ASSIGN_OR_RETURN(links_, OwnerLinks::Create(to, *engine_, clock_));
  cache_ =
      std::make_unique<HostCache>(HostCache::Options{.bytes_max = options_.host_cache_bytes,
                                                     .fabric = options_.gather.fabric,
                                                     .spool_folder = options_.gather.spool_folder},
                                  *links_, clock_);
  engine_->Connect(*links_, [this](TrainerRank rank, v1::TrainMessage message) {
    peers_->Send(rank, std::move(message));
  });
  Gather::Options gather = options_.gather;
  if (options_.host_cache_bytes > 0) gather.cache = cache_.get();
  service_ = std::make_unique<OnDemandService>(
      OnDemandService::Parts{.engine = *engine_,
                             .owners = *links_,
                             .handles = parts.handles,
                             .trainer_executor = parts.trainer_executor,
                             .pool = pool_,
                             .clock = clock_,
                             .state_of = [this, check = parts.check_session](
                                             uint64_t session) -> Result<RankStatePtr> {
                               DWS_RETURN_IF_ERROR(check(session));
                               return peers_->state();
                             }},
      std::move(gather), options_.epoch.value());
  exchange_ = std::make_unique<ObjectExchange>(options_.job_id, options_.rank,
                                               options_.epoch.value(), *links_);
  peer_objects_ = std::make_unique<PeerObjectServiceImpl>(options_.job_id, objects_,
                                                          object_traffic_, &exchange_->store());
  if (options_.object_bytes > 0) {
    object_service_ = std::make_unique<ObjectServiceImpl>(
        options_.job_id,
        ObjectServiceImpl::Parts{
            .store = objects_, .traffic = object_traffic_, .owners = *links_, .clock = clock_});
  }
  peers_->SetStatus([this](v1::OnDemandStatus& status) {
    engine_->FillStatus(status);
    service_->FillStatus(status);
    const HostCache::Counts cached = cache_->counts();
    status.set_host_cache_bytes(cached.held_bytes);
    status.set_host_cache_fetched_bytes(cached.fetched_bytes);
    if (object_service_ != nullptr) object_service_->FillStatus(*status.mutable_objects());
  });
  return OkStatus();
}

std::vector<GrpcServer::NamedService> OnDemand::for_senders() {
  std::vector<GrpcServer::NamedService> services{
      {.name = "dws.v1.TrainService", .service = train_service_.get()}};
  if (peer_objects_ != nullptr) {
    services.push_back({.name = "dws.v1.PeerObjectService", .service = peer_objects_.get()});
  }
  return services;
}

std::vector<GrpcServer::NamedService> OnDemand::for_rank() {
  std::vector<GrpcServer::NamedService> services;
  if (service_ != nullptr) {
    services.push_back({.name = "dws.v1.OnDemandService", .service = service_.get()});
  }
  if (object_service_ != nullptr) {
    services.push_back({.name = "dws.v1.ObjectService", .service = object_service_.get()});
  }
  return services;
}

void OnDemand::Stop() {
  if (peers_ != nullptr) peers_->SetStatus(nullptr);
  if (object_service_ != nullptr) object_service_->Stop();
  if (links_ != nullptr) links_->Stop();
  if (exchange_ != nullptr) exchange_->Stop();
  if (cache_ != nullptr) cache_->Stop();
  if (service_ != nullptr) service_->Stop();
  if (engine_ != nullptr) engine_->Stop();
}

// Both run on the trainer's thread, like its registrations, so the state is the live one's.
PublishGate OnDemand::gate() {
  if (engine_ == nullptr) return {};
  return {.may = [this](WeightVersion version) -> Status {
            const RankStatePtr state = peers_->state();
            return state == nullptr ? OkStatus() : engine_->MayPublish(state->stream, version);
          },
          .captured =
              [this](WeightVersion version) {
                engine_->OnPublished(peers_->state()->stream, version);
              }};
}

}  // namespace dws
