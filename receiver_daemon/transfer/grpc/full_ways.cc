// What a way has brought is proved before the next one is asked: only it can be wrong then.
#include "receiver_daemon/transfer/grpc/full_ways.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "receiver_daemon/transfer/same_host/snapshot_reader.h"

namespace dws {
namespace {

size_t IndexOf(FullWay way) { return static_cast<size_t>(way); }

uint64_t MissingBytes(const FullAssembly& assembly) {
  uint64_t bytes = 0;
  for (const BlockRange& range : assembly.Missing()) bytes += SizeBytes(assembly.layout(), range);
  return bytes;
}

}  // namespace

FullWays::Passed FullWays::ReadSameHost(const SyncTarget& target, Fetcher& fetcher,
                                        FullAssembly& assembly) {
  const auto snapshot = fetcher.MapSnapshot(target.stream, assembly.layout(), host_);
  if (!snapshot.ok()) return {.why = snapshot.status()};
  const Status read = ReadSnapshot(**snapshot, target.version, assembly, pool_);
  if (!read.ok()) return {.why = read};
  const std::vector<RankSlice> wrong = assembly.DropWrong();
  if (!wrong.empty()) {
    return {.why = DataLossError("{} slices are not as published, the first is of '{}'",
                                 wrong.size(), assembly.layout().tensor(wrong[0]).name)};
  }
  if (assembly.missing_blocks() == 0) return {.works = true, .why = OkStatus()};
  return {.works = true,
          .why = UnavailableError("the trainer has changed {} blocks since",
                                  assembly.missing_blocks())};
}

Status FullWays::Read(const SyncTarget& target, Fetcher fetcher, FullAssembly& assembly) {
  std::array<uint64_t, kFullWays.size()> bytes = {};
  const uint64_t all = MissingBytes(assembly);
  Passed passed;  // the first way
  if (required_ != FullWay::kGrpc) {
    passed = ReadSameHost(target, fetcher, assembly);
    bytes[IndexOf(FullWay::kSameHost)] = all - MissingBytes(assembly);
    if (absl::IsCancelled(passed.why)) return passed.why;
    if (required_ == FullWay::kSameHost && !passed.works) {
      return UnavailableError("full tensors of {} may come by {} only: {}", sender_,
                              ToString(*required_), Message(passed.why));
    }
  }
  if (assembly.missing_blocks() > 0) {
    const uint64_t rest = MissingBytes(assembly);
    DWS_RETURN_IF_ERROR(fetcher.Full(target.stream, target.version, assembly));
    bytes[IndexOf(FullWay::kGrpc)] = rest;
  }
  Note(bytes, passed.why);
  return OkStatus();
}

void FullWays::Note(std::array<uint64_t, kFullWays.size()> bytes, const Status& passed) {
  const auto most = std::max_element(bytes.begin(), bytes.end());
  const FullWay way = kFullWays[static_cast<size_t>(most - bytes.begin())];
  MutexLock lock(mutex_);
  const std::string reason(Message(passed));
  if (view_.last != way || view_.reason != reason) {
    LogInfo("full_way", {{"sender", sender_}, {"way", ToString(way)}, {"reason", reason}});
  }
  view_.last = way;
  view_.reason = reason;
  for (size_t i = 0; i < bytes.size(); ++i) view_.bytes[i] += bytes[i];
}

FullWays::View FullWays::view() const {
  MutexLock lock(mutex_);
  return view_;
}

}  // namespace dws
