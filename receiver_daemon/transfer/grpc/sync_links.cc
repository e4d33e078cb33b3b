#include "receiver_daemon/transfer/grpc/sync_links.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/peers/peer_address.h"
#include "receiver_daemon/transfer/grpc/sender_messages.h"
#include "receiver_daemon/transfer/grpc/sync_link.h"

namespace dws {

Result<Spool> SpoolOf(ByteSpan bytes, Spool::Options options) {
  options.size_bytes_max = options.size_bytes_expected = bytes.size();
  if (options.progress != nullptr) options.progress->total_bytes += bytes.size();
  Spool spool(std::move(options));
  DWS_RETURN_IF_ERROR(spool.Append(bytes));
  return spool;
}

SyncLinks::SyncLinks(Options options, Subscription& subscription, const Clock& clock)
    : liveness_(options.liveness), ticks_([this] {
        Tick();
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
        options.tls, subscription, clock));
    if (!options.peer_address.empty()) links_.back()->ServePeersAt(options.peer_address);
    const bool elsewhere = !IsOnThisHost(options.addresses[i]);
    if (options.broadcasts == nullptr && options.early_deltas.value_or(elsewhere)) {
      links_.back()->FetchDeltasEarly();
    }
    // An epoch takes memory and thread blocks of the device, so only the first kBroadcastLinksMax
    // senders are joined; the deltas of the others are fetched.
    if (options.broadcasts != nullptr && i < limits::kBroadcastLinksMax) {
      links_.back()->JoinBroadcasts(*options.broadcasts, object_bytes_max);
    }
  }
}

SyncLinks::~SyncLinks() { Stop(); }

void SyncLinks::Start() { ticks_.Start(); }

void SyncLinks::Tick() {
  for (const auto& link : links_) link->Tick();
}

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

SenderLink& SyncLinks::sender(const Piece& piece) const { return link(piece); }

void SyncLinks::Stop() {
  ticks_.Stop();
  for (const auto& link : links_) link->Stop();
}

Result<Description> SyncLinks::Describe(const SyncTarget& target, TrainerRank rank) {
  const WaitScope wait(liveness_);
  return link({target, rank}).fetcher(target, rank).Describe(target.stream, target.version);
}

void SyncLinks::Staged(const SyncTarget& target, TrainerRank rank) {
  v1::SyncUp message;
  v1::Ack& ack = *message.mutable_ack();
  ack.set_nonce(target.ranks[rank.value()].nonce);
  ack.set_version(target.version.value());
  ack.set_stage(v1::Ack::STAGED);
  *ack.mutable_stream() = ToProto(target.stream);
  link({target, rank}).Send(std::move(message));
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
  link({target, rank}).Send(std::move(message));
}

void SyncLinks::Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) {
  link({target, rank}).Send(NackMessage(target.at(), target.ranks[rank.value()].nonce, rejection));
}

}  // namespace dws
