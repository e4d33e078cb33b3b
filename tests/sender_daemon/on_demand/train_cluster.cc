#include "tests/sender_daemon/on_demand/train_cluster.h"

#include <fcntl.h>

#include <cstring>
#include <thread>

#include "common/base/check.h"
#include "common/proto_convert/train_convert.h"
#include "sender_daemon/on_demand/gather/limits.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

constexpr uint64_t kLine = 16;  // elements

UniqueFd Again(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

CreatedRegion Make(std::string_view name, uint64_t bytes) {
  auto made = CreateHostRegion(name, bytes);
  DWS_CHECK(made.ok());
  return *std::move(made);
}

OwnerHost HostOf(const ClusterOptions& options, TrainerRank rank) {
  OwnerHost host{.id = HostId()};
  if (!options.same_host) host.id = fmt::format("host {}", rank.value() / options.on_host);
  if (!options.accumulate_bytes.empty()) {
    host.accumulate_bytes = options.accumulate_bytes[rank.value()];
  }
  return host;
}

uint64_t UnitPushBytes(const ClusterOptions& options) {
  uint64_t largest = 64;
  for (size_t u = 0; u < options.shards[0].size(); ++u) {
    uint64_t bytes = 0;
    for (const auto& shard : options.shards) bytes += shard[u] * 4;
    largest = std::max(largest, CeilDiv(bytes, 64) * 64);
  }
  return largest;
}

}  // namespace

TrainSender::TrainSender(const ClusterOptions& options, TrainerRank rank, int port, uint64_t epoch)
    : options_(options), rank_(rank) {
  auto handles = HandleSocket::Listen({.path = sockets_.path() + "/handles"});
  DWS_CHECK(handles.ok());
  handles_ = *std::move(handles);
  engine_ = std::make_unique<MinibatchEngine>(
      MinibatchEngine::Options{.job_id = "job",
                               .rank = rank,
                               .ranks = options.ranks,
                               .epoch = RankEpoch(epoch),
                               .peer_timeout = options.peer_timeout,
                               .accumulate_bytes = HostOf(options, rank).accumulate_bytes},
      pool_, clock_);
  peers_ = std::make_unique<TrainPeers>("job", rank, engine_.get(), HostOf(options, rank));
  service_ = std::make_unique<TrainServiceImpl>(TrainServiceImpl::Parts{
      .peers = *peers_, .engine = engine_.get(), .handles = handles_.get(), .executor = &reads_});
  grpc::ServerBuilder builder;
  builder.AddListeningPort(fmt::format("127.0.0.1:{}", port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  DWS_CHECK(server_ != nullptr);
}

TrainSender::~TrainSender() {
  if (links_ != nullptr) links_->Stop();
  engine_->Stop();
  peers_->Stop();
  server_->Shutdown(std::chrono::system_clock::now());
  reads_.Stop();
}

void TrainSender::Connect(const std::vector<std::string>& addresses) {
  OwnerLinks::Options to;
  to.job_id = "job";
  to.self = rank_;
  to.addresses = addresses;
  to.host_id = HostOf(options_, rank_).id;
  auto links = OwnerLinks::Create(to, *engine_, clock_);
  DWS_CHECK(links.ok());
  links_ = *std::move(links);
  engine_->Connect(*links_, [this](TrainerRank rank, v1::TrainMessage message) {
    peers_->Send(rank, std::move(message));
  });
}

v1::OnDemandStatus TrainSender::Status() const {
  v1::OnDemandStatus status;
  engine_->FillStatus(status);
  return status;
}

TrainRank::TrainRank(const ClusterOptions& options, TrainerRank rank)
    : options_(options), rank_(rank), arena_(Make("arena", 4096)) {
  uint64_t elements = 0;
  for (const uint64_t shard : options.shards[rank.value()]) {
    offsets_.push_back(elements * 4);
    elements += CeilDiv(shard, kLine) * kLine;
  }
  const uint64_t width = options.exact ? 8 : 4;
  gradients_ = Make("gradients", limits::kRecordPageBytes + std::max(elements, kLine) * width);
  auto outbox = OutboxWriter::Create({.slot_count = options.ranks * options.pushes,
                                      .data_bytes = options.pushes * UnitPushBytes(options)},
                                     handles_);
  DWS_CHECK(outbox.ok());
  outbox_ = std::make_unique<OutboxWriter>(*std::move(outbox));
}

JoinOrder TrainRank::Order() const {
  JoinOrder order{.session = 1,
                  .prefetch = 1,
                  .exact = options_.exact,
                  .arena_bytes = arena_.region.size_bytes(),
                  .gradients_bytes = gradients_.region.size_bytes(),
                  .outbox_bytes = handles_.size_bytes};
  for (size_t u = 0; u < offsets_.size(); ++u) {
    const std::string name = fmt::format("u{}", u);
    order.units.push_back({.name = name, .tensors = {fmt::format("t{}", u)}});
    order.shards.push_back({.name = name, .elements = options_.shards[rank_.value()][u]});
    std::vector<uint64_t>& pushed = order.pushed.emplace_back();
    for (const auto& shards : options_.shards) pushed.push_back(shards[u]);
  }
  return order;
}

Status TrainRank::Join(MinibatchEngine& engine, uint64_t version,
                       const std::function<void(JoinOrder&)>& change) {
  JoinOrder order = Order();
  if (change != nullptr) change(order);
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(Again(arena_.fd));
  descriptors.push_back(Again(gradients_.fd));
  descriptors.push_back(Again(handles_.region));
  descriptors.push_back(Again(handles_.wake));
  DWS_ASSIGN_OR_RETURN(auto memory, RankMemory::Map(order, options_.ranks, std::move(descriptors)));
  static std::atomic<uint64_t> members{0};
  const uint64_t member = ++members;
  DWS_RETURN_IF_ERROR(engine.Join({.member = member,
                                   .stream = kJobStream,
                                   .world_size = options_.ranks,
                                   .version = WeightVersion(version),
                                   .order = order,
                                   .process = "pid 7",
                                   .memory = memory}));
  engine_ = &engine;
  member_ = member;
  attempt_ = {};
  return OkStatus();
}

void TrainRank::Leave() { engine_->Leave(member_); }

v1::MinibatchView TrainRank::View() const {
  const auto view = engine_->View(member_);
  return view.ok() ? *view : v1::MinibatchView();
}

v1::MinibatchView TrainRank::Await(
    const std::function<bool(const v1::MinibatchView&)>& wanted) const {
  v1::MinibatchView view;
  const bool found = Eventually([&] {
    view = View();
    return wanted(view);
  });
  if (!found) fmt::print(stderr, "rank {}: {}\n", rank_.value(), view.ShortDebugString());
  DWS_CHECK(found);
  return view;
}

v1::MinibatchView TrainRank::AwaitOpen(uint64_t minibatch) const {
  const v1::MinibatchView view = Await([&](const v1::MinibatchView& now) {
    return now.phase() == v1::MinibatchView::PHASE_OPEN && now.attempt().minibatch() == minibatch &&
           FromProto(now.attempt()) > attempt_;
  });
  attempt_ = FromProto(view.attempt());
  number_ = 0;
  return view;
}

v1::MinibatchView TrainRank::AwaitStep() const {
  return Await([&](const v1::MinibatchView& now) { return now.has_step(); });
}

bool TrainRank::AwaitEnd() const {
  return Await([&](const v1::MinibatchView& now) {
           return now.has_step() || FromProto(now.attempt()) != attempt_;
         })
      .has_step();
}

bool TrainRank::Push(uint32_t unit, const std::vector<std::vector<float>>& by_owner,
                     Duration patience) {
  const uint64_t buffer_bytes = UnitPushBytes(options_);
  const TimePoint deadline = RealClock().Now() + patience;
  const auto free = [&]() -> std::optional<uint32_t> {
    for (uint32_t b = 0; b < options_.pushes; ++b) {
      bool all = true;
      for (uint32_t o = 0; o < options_.ranks; ++o) {
        all = all && outbox_->IsFree(b * options_.ranks + o);
      }
      if (all) return b;
    }
    return std::nullopt;
  };
  std::optional<uint32_t> buffer = free();
  while (!buffer.has_value() && RealClock().Now() < deadline) {
    (void)outbox_->Wait(std::chrono::milliseconds(20));
    buffer = free();
  }
  if (!buffer.has_value()) return false;
  ++number_;
  uint64_t at = *buffer * buffer_bytes;
  for (uint32_t o = 0; o < options_.ranks; ++o) {
    const uint64_t width = ElementBytes(options_.dtype);
    for (size_t e = 0; e < by_owner[o].size(); ++e) {
      // BF16: the upper half.
      uint32_t bits = 0;
      std::memcpy(&bits, &by_owner[o][e], 4);
      if (width == 2) bits >>= 16;
      std::memcpy(outbox_->data().data() + at + e * width, &bits, width);
    }
    const OutboxPiece piece{.slot = *buffer * options_.ranks + o,
                            .unit = unit,
                            .owner = o,
                            .dtype = options_.dtype,
                            .minibatch = attempt_.minibatch,
                            .term = attempt_.term.value(),
                            .attempt = attempt_.attempt,
                            .number = number_,
                            .offset_bytes = at,
                            .size_bytes = by_owner[o].size() * width};
    at += piece.size_bytes;
    outbox_->Fill(piece);
  }
  (void)engine_->ForMember(member_, [](TrainJob& job) {
    job.OnOutbox();
    return OkStatus();
  });
  return true;
}

void TrainRank::Fill(const OutboxPiece& piece) {
  OutboxPiece filled = piece;
  filled.minibatch = attempt_.minibatch;
  filled.term = attempt_.term.value();
  filled.attempt = attempt_.attempt;
  outbox_->Fill(filled);
}

Status TrainRank::Finish(double weight) {
  return engine_->ForMember(member_,
                            [&](TrainJob& job) { return job.Finish(attempt_, number_, weight); });
}

Status TrainRank::Abandon(const std::string& reason) {
  return engine_->ForMember(member_, [&](TrainJob& job) { return job.Abandon(attempt_, reason); });
}

std::vector<float> TrainRank::Gradient(uint32_t unit) const {
  std::vector<float> gradient(options_.shards[rank_.value()][unit]);
  if (gradient.empty()) return gradient;
  std::memcpy(gradient.data(),
              gradients_.region.bytes().data() + limits::kRecordPageBytes + offsets_[unit],
              gradient.size() * 4);
  return gradient;
}

Status TrainRank::Publish(uint64_t version) {
  DWS_RETURN_IF_ERROR(engine_->MayPublish(kJobStream, WeightVersion(version)));
  engine_->OnPublished(kJobStream, WeightVersion(version));
  return OkStatus();
}

Status TrainRank::Skip() {
  return engine_->ForMember(member_, [&](TrainJob& job) { return job.Skip(attempt_.minibatch); });
}

TrainCluster::TrainCluster(ClusterOptions options) : options_(std::move(options)) {
  for (uint32_t r = 0; r < options_.ranks; ++r) {
    senders_.push_back(std::make_unique<TrainSender>(options_, TrainerRank(r), 0, ++epochs_));
    ports_.push_back(senders_.back()->port());
    addresses_.push_back(fmt::format("127.0.0.1:{}", ports_.back()));
    ranks_.push_back(std::make_unique<TrainRank>(options_, TrainerRank(r)));
  }
  for (const auto& sender : senders_) sender->Connect(addresses_);
}

void TrainCluster::JoinAll(uint64_t version) {
  for (uint32_t r = 0; r < options_.ranks; ++r) {
    DWS_CHECK(ranks_[r]->Join(senders_[r]->engine(), version).ok());
  }
}

void TrainCluster::RestartSender(uint32_t rank) {
  senders_[rank].reset();
  senders_[rank] =
      std::make_unique<TrainSender>(options_, TrainerRank(rank), ports_[rank], ++epochs_);
  senders_[rank]->Connect(addresses_);
}

void TrainCluster::ReplaceRank(uint32_t rank) {
  ranks_[rank] = std::make_unique<TrainRank>(options_, TrainerRank(rank));
}

}  // namespace dws
