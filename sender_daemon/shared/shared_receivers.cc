#include "sender_daemon/shared/shared_receivers.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "common/transport/shared_fs/file_writer.h"
#include "common/transport/shared_fs/names.h"

namespace dws {
namespace {

constexpr size_t kEarlierSessionsMax = 16;  // remembered per receiver

}  // namespace

// Sends nothing, because the receiver reads the directory itself.
class SharedReceivers::Connection final : public SyncConnection {
 public:
  void WelcomeDue() override {}
  void AnnounceDue() override {}
  void KeepaliveDue() override {}
  void Close(const Status&) override { closed_.store(true); }
  bool closed() const { return closed_.load(); }

 private:
  std::atomic<bool> closed_{false};
};

SharedReceivers::SharedReceivers(FileSystem& files, ReceiverHub& hub, Place place,
                                 OnRejected on_rejected)
    : files_(files), hub_(hub), place_(std::move(place)), on_rejected_(std::move(on_rejected)) {}

SharedReceivers::~SharedReceivers() {
  for (auto& [name, receiver] : receivers_) Disconnect(receiver);
}

Result<v1::SharedReport> SharedReceivers::Read(const std::string& name) const {
  const std::string path = fmt::format("{}/{}", place_.folder, name);
  DWS_ASSIGN_OR_RETURN(const auto file, files_.ReadFile(path, limits::kSharedReportBytesMax));
  DWS_ASSIGN_OR_RETURN(const std::string_view bytes,
                       shared::Unseal(shared::SealedKind::kReport, file, place_.key, path));
  v1::SharedReport report;
  if (!report.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLossError("{} is not a SharedReport", path);
  }
  DWS_ASSIGN_OR_RETURN(const std::string expected, shared::EscapeId(report.receiver_id()));
  if (report.job_id() != place_.job_id || report.trainer_rank() != place_.rank.value() ||
      expected != name) {
    return FailedPreconditionError(
        "{} is of receiver '{}' of job '{}' for trainer rank {}: it was copied or renamed", path,
        report.receiver_id(), report.job_id(), report.trainer_rank());
  }
  if (report.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "receiver '{}' speaks protocol {}.{}, this sender {}.{}: upgrade the "
        "older one",
        report.receiver_id(), report.protocol_major(), report.protocol_minor(), kProtocolMajor,
        kProtocolMinor);
  }
  return report;
}

bool SharedReceivers::Refresh() {
  bool unreadable = false;
  if (!since_.has_value()) since_ = hub_.clock().Now();
  const auto names = Names();
  if (names.ok()) {
    for (const std::string& name : *names) {
      auto report = Read(name);
      Note(name, "shared_report_ignored", report.status());
      if (report.ok()) unreadable |= Take(name, *std::move(report));
    }
  }
  const TimePoint now = hub_.clock().Now();
  for (auto& [name, receiver] : receivers_) {
    if (now - receiver.changed_at > limits::kSharedPresenceTimeout) Disconnect(receiver);
  }
  if (!names.ok()) return unreadable;
  std::erase_if(receivers_, [&](const auto& entry) {
    return !entry.second.id.has_value() && !names->contains(entry.first);
  });
  std::erase_if(troubles_, [&](const auto& entry) {
    return !entry.first.empty() && !names->contains(entry.first);
  });
  return unreadable;
}

Result<std::set<std::string>> SharedReceivers::Names() {
  const auto listed = files_.List(place_.folder);
  if (!listed.ok() && !absl::IsNotFound(listed.status())) {
    Note("", "shared_reports_unreadable", listed.status());
    return listed.status();
  }
  std::set<std::string> names;
  if (listed.ok()) names.insert(listed->begin(), listed->end());
  std::erase_if(names, [](const auto& name) { return name.ends_with(shared::kTemporaryEnding); });
  Status crowded;
  if (names.size() > limits::kReceiversMax) {
    crowded = ResourceExhaustedError(
        "{} has reports of {} receivers, the first {} are read: remove those of receivers that no "
        "longer exist",
        place_.folder, names.size(), limits::kReceiversMax);
    names.erase(std::next(names.begin(), limits::kReceiversMax), names.end());
  }
  DWS_CHECK(names.size() <= limits::kReceiversMax);
  Note("", "shared_reports_unreadable", crowded);
  return names;
}

// Logs the same trouble once.
void SharedReceivers::Note(const std::string& name, std::string_view event, const Status& status) {
  if (status.ok() || absl::IsNotFound(status)) {
    troubles_.erase(name);
    return;
  }
  std::string& trouble = troubles_[name];
  if (trouble == Message(status)) return;
  trouble = Message(status);
  LogWarning(event, {{"reason", trouble}});
}

bool SharedReceivers::Take(const std::string& name, v1::SharedReport report) {
  const auto [found, first] = receivers_.try_emplace(name);
  Receiver& receiver = found->second;
  const TimePoint now = hub_.clock().Now();
  if (first) {
    // An existing report may be of a receiver that is gone: it counts only when it changes.
    receiver.report = std::move(report);
    receiver.changed_at = now - limits::kSharedPresenceTimeout - Duration(1);
    return false;
  }
  const bool other_session = report.session() != receiver.report.session();
  if (other_session && IsOlder(receiver, report)) return false;
  if (!other_session && report.sequence() <= receiver.report.sequence()) return false;
  const v1::SharedReport before = std::exchange(receiver.report, std::move(report));
  receiver.changed_at = now;
  if (receiver.connection != nullptr && receiver.connection->closed()) {
    // Another connection has taken its id. Only a new process may take the id back.
    receiver.id.reset();
    if (!other_session) return false;
    receiver.connection.reset();
  }
  const bool connects = !receiver.id.has_value();
  if (connects) Connect(receiver);
  if (!receiver.id.has_value()) return false;
  v1::SharedReport nothing;
  if (!other_session) {
    nothing.set_rejections(before.rejections());  // reported before this connection
  }
  return Tell(receiver, connects || other_session ? nothing : before);
}

// Two receivers with one id overwrite each other's report. The one that began last counts while it
// is live.
bool SharedReceivers::IsOlder(Receiver& receiver, const v1::SharedReport& report) const {
  std::vector<uint64_t>& earlier = receiver.earlier;
  const auto found = std::find(earlier.begin(), earlier.end(), report.session());
  const bool live = hub_.clock().Now() - receiver.changed_at <= limits::kSharedPresenceTimeout;
  if (found != earlier.end() && live) {
    if (!std::exchange(receiver.twice, true)) {
      LogWarning(
          "shared_receiver_twice",
          {{"id", report.receiver_id()},
           {"reason",
            "two receivers have this id, the one that started last counts: give each its own id"}});
    }
    return true;
  }
  if (found != earlier.end()) earlier.erase(found);
  if (earlier.size() == kEarlierSessionsMax) earlier.erase(earlier.begin());
  earlier.push_back(receiver.report.session());
  DWS_CHECK(earlier.size() <= kEarlierSessionsMax);
  return false;
}

void SharedReceivers::Connect(Receiver& receiver) {
  DWS_CHECK(!receiver.id.has_value());
  const auto connection = std::make_shared<Connection>();
  const auto id = hub_.Connect(receiver.report.job_id(), receiver.report.receiver_id(), connection,
                               place_.view);
  if (!id.ok()) {
    LogWarning("shared_receiver_refused",
               {{"id", receiver.report.receiver_id()}, {"reason", Message(id.status())}});
    return;
  }
  receiver.id = *id;
  receiver.connection = connection;
  LogInfo("receiver_connected", {{"id", receiver.report.receiver_id()},
                                 {"have_version", receiver.report.committed_version()}});
}

void SharedReceivers::Disconnect(Receiver& receiver) {
  if (!receiver.id.has_value()) return;
  DWS_CHECK(receiver.connection != nullptr);
  hub_.Disconnect(*receiver.id);
  receiver.id.reset();
  receiver.connection.reset();
  LogInfo("receiver_disconnected", {{"id", receiver.report.receiver_id()}});
}

bool SharedReceivers::Tell(Receiver& receiver, const v1::SharedReport& before) {
  const v1::SharedReport& report = receiver.report;
  const auto stream = FromProto(report.stream());
  if (!stream.ok()) return false;  // it does not know a stream yet
  DWS_CHECK(receiver.id.has_value());
  const ConnectionId id = *receiver.id;
  const bool same_stream = before.stream().incarnation() == report.stream().incarnation() &&
                           before.stream().id_hi() == report.stream().id_hi() &&
                           before.stream().id_lo() == report.stream().id_lo();
  if (report.staged_version() != 0 &&
      (!same_stream || report.staged_version() != before.staged_version())) {
    hub_.OnStaged(id, hub_.NextNonce(id, true), *stream, WeightVersion(report.staged_version()));
  }
  const bool other_commit = !same_stream ||
                            report.committed_version() != before.committed_version() ||
                            report.committed_state_token().SerializeAsString() !=
                                before.committed_state_token().SerializeAsString();
  if (report.committed_version() != 0 && other_commit) {
    hub_.OnCommitted(id, *stream,
                     {.version = WeightVersion(report.committed_version()),
                      .state_token = FromProto(report.committed_state_token()),
                      .pause_seconds = report.pause_seconds(),
                      .stage_seconds = report.stage_seconds(),
                      .fetched_bytes = report.fetched_bytes()});
  }
  if (report.rejections() == before.rejections()) return false;
  const std::string error(Utf8Prefix(report.rejected_message(), limits::kErrorBytesMax));
  LogWarning("nack", {{"version", report.rejected_version()},
                      {"last_good", report.committed_version()},
                      {"code", report.rejected_code()},
                      {"slices", report.rejected_slices_size()},
                      {"reason", error}});
  const bool current = hub_.OnNack(id, hub_.NextNonce(id, true), *stream, error);
  on_rejected_(report, current);
  return report.rejected_code() == static_cast<uint32_t>(absl::StatusCode::kDataLoss);
}

size_t SharedReceivers::present() const {
  size_t count = 0;
  for (const auto& [name, receiver] : receivers_) count += receiver.id.has_value() ? 1 : 0;
  return count;
}

bool SharedReceivers::Stuck() const {
  for (const auto& [name, receiver] : receivers_) {
    if (!receiver.id.has_value()) continue;
    const v1::SharedReport& report = receiver.report;
    if (report.rejected_code() == static_cast<uint32_t>(absl::StatusCode::kDataLoss) &&
        report.rejected_version() > report.committed_version()) {
      return true;
    }
  }
  return false;
}

bool SharedReceivers::Awaited(const StreamId& stream, WeightVersion version) const {
  for (const auto& [name, receiver] : receivers_) {
    if (!receiver.id.has_value()) continue;
    const auto of = FromProto(receiver.report.stream());
    if (!of.ok() || *of != stream) return true;
    if (receiver.report.committed_version() < version.value()) return true;
  }
  return false;
}

std::optional<WeightVersion> SharedReceivers::Lacking(const StreamId& stream) const {
  std::optional<WeightVersion> newest;
  for (const auto& [name, receiver] : receivers_) {
    if (!receiver.id.has_value()) continue;
    const v1::SharedReport& report = receiver.report;
    const auto of = FromProto(report.stream());
    if (!of.ok() || *of != stream || report.lacks_full_of() <= report.committed_version()) continue;
    newest = std::max(newest.value_or(WeightVersion(0)), WeightVersion(report.lacks_full_of()));
  }
  return newest;
}

bool SharedReceivers::AllBeyond(const StreamId& stream, WeightVersion version) const {
  // A receiver that was there before this sender started may be alive; only its next report shows
  // it.
  if (!since_.has_value() || hub_.clock().Now() - *since_ < limits::kSharedPresenceTimeout) {
    return false;
  }
  return !Awaited(stream, WeightVersion(version.value() + 1));
}

}  // namespace dws
