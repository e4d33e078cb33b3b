// A way that reads the sender's memory proves slices that are complete by their digests; a slice that
// is completed by the last way is proved then.
#include "receiver_daemon/transfer/grpc/full_ways.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "receiver_daemon/transfer/same_host/snapshot_reader.h"

namespace dws {
namespace {

// How often it is looked at what the capture of an early version has brought: twice as long after
// each time that it was nothing.
constexpr Duration kEarlyPollMin = std::chrono::milliseconds(1);
constexpr Duration kEarlyPollMax = std::chrono::milliseconds(64);

size_t IndexOf(FullWay way) { return static_cast<size_t>(way); }

uint64_t MissingBytes(const FullAssembly& assembly) {
  uint64_t bytes = 0;
  for (const BlockRange& range : assembly.Missing()) bytes += SizeBytes(assembly.layout(), range);
  return bytes;
}

// A call that was cancelled, with its stream perhaps, does not mean that the transfer is given up.
Status OfCall(const Status& status) {
  return absl::IsCancelled(status) ? UnavailableError("{}", Message(status)) : status;
}

// OK, or which slices had to be dropped.
Status DropWrong(FullAssembly& assembly) {
  const std::vector<RankSlice> wrong = assembly.DropWrong();
  if (wrong.empty()) return OkStatus();
  return DataLossError("{} slices are not as published, the first is of '{}'", wrong.size(),
                       assembly.layout().tensor(wrong[0]).name);
}

}  // namespace

struct FullWays::Transfer {
  const SyncTarget& target;
  Fetcher& fetcher;
  LinkSpeed& speed;
  FullAssembly& assembly;
  const uint64_t wanted_bytes = MissingBytes(assembly);
  std::array<uint64_t, kFullWays.size()> bytes = {};  // that came, by FullWay
  std::string provider;
  std::string reason;  // why not by the ways before

  // So many bytes were missing before it was tried by this way. Nothing came if slices were dropped
  // of which other ways had brought a part.
  void Came(FullWay way, uint64_t missing_before) {
    const uint64_t missing = MissingBytes(assembly);
    if (missing < missing_before) bytes[IndexOf(way)] += missing_before - missing;
  }
  void Passed(FullWay way, const Status& why) {
    if (!reason.empty()) reason += "; ";
    reason += fmt::format("{}: {}", ToString(way), Message(why));
  }
};

bool FullWays::MayTry(FullWay way) const {
  if (required_.has_value()) return *required_ == way;
  return way != FullWay::kFabric || fabric_.on();
}

Status FullWays::ReadSameHost(Transfer& transfer) {
  FullAssembly& assembly = transfer.assembly;
  const auto snapshot =
      transfer.fetcher.MapSnapshot(transfer.target.stream, assembly.layout(), host_);
  DWS_RETURN_IF_ERROR(OfCall(snapshot.status()));
  return ReadSnapshot(**snapshot, transfer.target.version, assembly, pool_);
}

Status FullWays::ReadFabric(Transfer& transfer) {
  const auto ask = [&transfer]() -> Result<RemoteLoan> {
    auto loan = transfer.fetcher.OpenFabric(transfer.target.stream);
    DWS_RETURN_IF_ERROR(OfCall(loan.status()));
    return loan;
  };
  return fabric_.Read(ask, transfer.target.version, transfer.assembly, transfer.provider);
}

Status FullWays::ReadMemory(FullWay way, Transfer& transfer) {
  const uint64_t before = MissingBytes(transfer.assembly);
  Status read = way == FullWay::kSameHost ? ReadSameHost(transfer) : ReadFabric(transfer);
  const Status right = DropWrong(transfer.assembly);
  if (read.ok()) read = right;
  transfer.Came(way, before);
  return read;
}

// Blocks of this version that are here may be those of an attempt to capture it that was given up. The
// digests show it.
Status FullWays::ReadEarly(Transfer& transfer) {
  FullAssembly& assembly = transfer.assembly;
  const EarlyVersion& early = *assembly.early();
  const StreamId& stream = transfer.target.stream;
  const WeightVersion version = transfer.target.version;
  MappedSnapshot snapshot;
  if (MayTry(FullWay::kSameHost)) {
    const auto mapped = transfer.fetcher.MapSnapshot(stream, assembly.layout(), host_);
    if (mapped.ok()) snapshot = *mapped;
  }
  const uint64_t bytes = MissingBytes(assembly);
  bool ask = snapshot == nullptr && MayTry(FullWay::kGrpc) && !MayTry(FullWay::kFabric);
  Duration wait = kEarlyPollMin;
  while (early.stage() == EarlyVersion::Stage::kCapturing) {
    const uint64_t missing = assembly.missing_blocks();
    if (missing > 0 && snapshot != nullptr) {
      DWS_RETURN_IF_ERROR(ReadSnapshot(*snapshot, version, assembly, pool_, true));
    } else if (std::exchange(ask, false)) {
      DWS_RETURN_IF_ERROR(transfer.fetcher.FullEarly(stream, version, assembly));
    }
    wait = assembly.missing_blocks() < missing ? kEarlyPollMin : std::min(2 * wait, kEarlyPollMax);
    if (!transfer.fetcher.Wait(wait)) return CancelledError("the receiver is shutting down");
  }
  if (early.stage() == EarlyVersion::Stage::kGone) {
    return UnavailableError("version {} was not published, or its capture did not go on",
                            version.value());
  }
  DWS_RETURN_IF_ERROR(early.describe());
  const Status right = DropWrong(assembly);
  const FullWay way = snapshot != nullptr ? FullWay::kSameHost : FullWay::kGrpc;
  if (!right.ok()) transfer.Passed(way, right);
  transfer.Came(way, bytes);
  return OkStatus();
}

Status FullWays::Missed(const Transfer& transfer, const Status& why) {
  const std::string_view way = ToString(*required_);
  const Status missed = MakeStatus(
      absl::IsDataLoss(why) ? why.code() : absl::StatusCode::kUnavailable,
      fmt::format("full tensors of {} may come by {} only, which brought {} of {} bytes of version "
                  "{}: {}",
                  sender_, way, transfer.bytes[IndexOf(*required_)], transfer.wanted_bytes,
                  transfer.target.version.value(), Message(why)));
  transfer.assembly.Refuse(missed);
  MutexLock lock(mutex_);
  view_.provider = transfer.provider;
  view_.reason = std::string(Message(missed));
  return UnavailableError("{}", view_.reason);
}

Status FullWays::Read(const SyncTarget& target, Fetcher fetcher, LinkSpeed& speed,
                      FullAssembly& assembly) {
  Transfer transfer{.target = target, .fetcher = fetcher, .speed = speed, .assembly = assembly};
  if (assembly.early() != nullptr) DWS_RETURN_IF_ERROR(ReadEarly(transfer));
  for (const FullWay way : {FullWay::kSameHost, FullWay::kFabric}) {
    if (!MayTry(way) || assembly.missing_blocks() == 0) continue;
    Status read = ReadMemory(way, transfer);
    if (absl::IsCancelled(read)) return read;
    const bool as_it_is = read.ok();
    if (const uint64_t changed = assembly.missing_blocks(); as_it_is && changed > 0) {
      read = UnavailableError("the trainer has changed {} blocks since", changed);
    }
    if (required_ == way && !read.ok()) return Missed(transfer, read);
    if (!read.ok()) transfer.Passed(way, read);
    if (as_it_is) break;  // the next way would find the same
  }
  DWS_RETURN_IF_ERROR(ReadRest(transfer));
  Note(transfer);
  return OkStatus();
}

Status FullWays::ReadRest(Transfer& transfer) {
  FullAssembly& assembly = transfer.assembly;
  uint64_t& bytes = transfer.bytes[IndexOf(FullWay::kGrpc)];
  const uint64_t rest = MissingBytes(assembly);
  if (assembly.missing_blocks() == 0) return OkStatus();
  const SyncTarget& target = transfer.target;
  const TimePoint began = clock_.Now();
  DWS_RETURN_IF_ERROR(transfer.fetcher.Full(target.stream, target.version, assembly));
  transfer.speed.Add(rest, clock_.Now() - began);
  bytes += rest;
  // What other ways have brought of these slices may be wrong. Then all of them comes now, once: what
  // is still wrong then is the sender's.
  const Status right = DropWrong(assembly);
  if (right.ok()) return OkStatus();
  LogWarning("full_slices_again", {{"sender", sender_}, {"reason", Message(right)}});
  transfer.Passed(FullWay::kGrpc, right);
  bytes += MissingBytes(assembly);
  return transfer.fetcher.Full(target.stream, target.version, assembly);
}

void FullWays::Note(const Transfer& transfer) {
  const auto most = std::max_element(transfer.bytes.begin(), transfer.bytes.end());
  const FullWay way = kFullWays[static_cast<size_t>(most - transfer.bytes.begin())];
  MutexLock lock(mutex_);
  if (view_.last != way || view_.reason != transfer.reason) {
    LogInfo("full_way", {{"sender", sender_},
                         {"way", ToString(way)},
                         {"provider", transfer.provider},
                         {"reason", transfer.reason}});
  }
  view_.last = way;
  view_.provider = transfer.provider;
  view_.reason = transfer.reason;
  for (size_t i = 0; i < transfer.bytes.size(); ++i) view_.bytes[i] += transfer.bytes[i];
}

FullWays::View FullWays::view() const {
  MutexLock lock(mutex_);
  return view_;
}

}  // namespace dws
