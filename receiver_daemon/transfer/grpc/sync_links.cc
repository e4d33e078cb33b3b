#include "receiver_daemon/transfer/grpc/sync_links.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "receiver_daemon/peers/peer_address.h"
#include "receiver_daemon/transfer/grpc/sender_messages.h"
#include "receiver_daemon/transfer/grpc/sync_link.h"

namespace dws {
namespace {

Result<Spool> SpoolOf(ByteSpan bytes, Spool::Options options) {
  options.size_bytes_max = options.size_bytes_expected = bytes.size();
  if (options.progress != nullptr) options.progress->total_bytes += bytes.size();
  Spool spool(std::move(options));
  DWS_RETURN_IF_ERROR(spool.Append(bytes));
  return spool;
}

}  // namespace

SyncLinks::SyncLinks(Options options, Subscription& subscription, const Clock& clock)
    : pulse_(options.pulse), profile_(options.profile), clock_(clock), ticks_([this] {
        for (const auto& link : links_) link->Tick();
        return limits::kTick;
      }) {
  const uint64_t object_bytes_max =
      options.broadcast_bytes_max /
      (std::clamp<size_t>(options.addresses.size(), 1, limits::kBroadcastLinksMax) *
       limits::kBroadcastsKeptMax);
  for (uint32_t i = 0; i < options.addresses.size(); ++i) {
    links_.push_back(std::make_unique<SyncLink>(
        SenderIndex(i), options.addresses[i],
        ReceiverName{.job_id = options.job_id, .receiver_id = options.receiver_id}, options.view,
        options.tls, options.full_ways, options.pool != nullptr ? *options.pool : alone_,
        subscription, clock));
    const bool elsewhere = !IsOnThisHost(options.addresses[i]);
    if (options.broadcasts == nullptr && options.early_deltas.value_or(elsewhere)) {
      links_.back()->FetchDeltasEarly();
    }
    // An epoch holds device memory and blocks of the device: of very many senders, some are fetched
    // from.
    if (options.broadcasts != nullptr && i < limits::kBroadcastLinksMax) {
      links_.back()->JoinBroadcasts(*options.broadcasts, object_bytes_max);
    }
  }
}

SyncLinks::~SyncLinks() { Stop(); }

void SyncLinks::Start() { ticks_.Start(); }

void SyncLinks::Reconnect(const Status& reason) {
  for (const auto& link : links_) link->Reconnect(reason);
}

void SyncLinks::CancelFetches() {
  for (const auto& link : links_) link->CancelFetches();
}

SyncLinks::Broadcasts SyncLinks::BroadcastTotals() const {
  Broadcasts totals;
  for (const auto& link : links_) {
    if (link->broadcasts() == nullptr) continue;
    const BroadcastMember::View view = link->broadcasts()->view();
    totals.joined += view.epoch == 0 ? 0 : 1;
    totals.received += view.received;
    totals.received_bytes += view.received_bytes;
    totals.failed += view.failed;
  }
  return totals;
}

std::vector<FullWays::View> SyncLinks::FullWayViews() const {
  std::vector<FullWays::View> views;
  for (const auto& link : links_) views.push_back(link->full_ways().view());
  return views;
}

void SyncLinks::Stop() {
  ticks_.Stop();
  for (const auto& link : links_) link->Stop();
}

SyncLink& SyncLinks::Link(const SyncTarget& target, TrainerRank rank) {
  return *links_[target.ranks[rank.value()].sender.value()];
}

Result<Spool> SyncLinks::FetchObject(const SyncTarget& target, TrainerRank rank,
                                     const DeltaWant& want, Spool::Options spool) {
  DWS_ASSIGN_OR_RETURN(std::optional<Spool> here, TakeObject(target, rank, want.base, spool));
  if (here.has_value()) return *std::move(here);
  const PulseWait wait(pulse_);
  SyncLink& link = Link(target, rank);
  const DeltaProfile profile = link.speed().Choose(profile_);
  const TimePoint began = clock_.Now();
  auto object = link.fetcher(target, rank)
                    .Object(target.stream, want.base, target.version, profile, want.slices,
                            want.skip_bytes, std::move(spool));
  if (object.ok()) link.speed().Add(object->size_bytes() - want.skip_bytes, clock_.Now() - began);
  return object;
}

Result<std::optional<Spool>> SyncLinks::TakeObject(const SyncTarget& target, TrainerRank rank,
                                                   WeightVersion base,
                                                   const Spool::Options& spool) {
  const PulseWait wait(pulse_);
  SyncLink& link = Link(target, rank);
  if (const auto here = link.Inline(target.stream, base, target.version)) {
    return SpoolOf(AsBytes(here->bytes), spool);
  }
  if (link.broadcasts() != nullptr) {
    const BroadcastKey key{.stream = target.stream, .base = base, .version = target.version};
    if (const auto object = link.broadcasts()->Take(key, spool.wanted); object.has_value()) {
      return SpoolOf(*object, spool);
    }
  }
  return std::optional<Spool>();
}

Result<Description> SyncLinks::Describe(const SyncTarget& target, TrainerRank rank) {
  const PulseWait wait(pulse_);
  return Link(target, rank).fetcher(target, rank).Describe(target.stream, target.version);
}

bool SyncLinks::fetches_early(const SyncTarget& target, TrainerRank rank) const {
  return links_[target.ranks[rank.value()].sender.value()]->early_deltas();
}

Result<std::vector<std::byte>> SyncLinks::FetchEarly(const SyncTarget& target, TrainerRank rank,
                                                     const DeltaWant& want,
                                                     const Spool::Options& spool,
                                                     const FrameTaker& take) {
  std::optional<PulseWait> wait(pulse_);
  const auto taken = [&](std::span<const SpooledFrame> frames, const Spool& arrived) {
    wait.reset();  // that is work
    const Status status = take(frames, arrived);
    wait.emplace(pulse_);
    return status;
  };
  SyncLink& link = Link(target, rank);
  return link.fetcher(target, rank)
      .ObjectEarly(target, rank, want, link.speed().Choose(profile_), spool, link.speed(), taken);
}

Result<FetchedFull> SyncLinks::FetchFull(const SyncTarget& target, TrainerRank rank,
                                         const FullWant& want, Spool::Options spool) {
  const PulseWait wait(pulse_);
  DWS_ASSIGN_OR_RETURN(const auto assembly, FullAssembly::Create(want, std::move(spool)));
  SyncLink& link = Link(target, rank);
  DWS_RETURN_IF_ERROR(
      link.full_ways().Read(target, link.fetcher(target, rank), link.speed(), *assembly));
  return assembly->Finish();
}

void SyncLinks::Staged(const SyncTarget& target, TrainerRank rank) {
  v1::SyncUp message;
  v1::Ack& ack = *message.mutable_ack();
  ack.set_nonce(target.ranks[rank.value()].nonce);
  ack.set_version(target.version.value());
  ack.set_stage(v1::Ack::STAGED);
  *ack.mutable_stream() = ToProto(target.stream);
  Link(target, rank).Send(std::move(message));
}

void SyncLinks::Committed(const SyncTarget& target, TrainerRank rank,
                          const CommittedReport& report) {
  v1::SyncUp message;
  v1::Ack& ack = *message.mutable_ack();
  ack.set_nonce(target.ranks[rank.value()].nonce);
  ack.set_version(target.version.value());
  ack.set_stage(v1::Ack::COMMITTED);
  *ack.mutable_stream() = ToProto(target.stream);
  ack.set_pause_seconds(report.pause_seconds);
  ack.set_stage_seconds(report.stage_seconds);
  ack.set_fetched_bytes(report.fetched_bytes);
  *ack.mutable_state_token() = ToProto(report.state_token);
  Link(target, rank).Send(std::move(message));
}

void SyncLinks::Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) {
  Link(target, rank).Send(NackMessage(target.at(), target.ranks[rank.value()].nonce, rejection));
}

}  // namespace dws
