#include "tools/dwsctl/text/status_text.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <vector>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kVersionsShown = 10;
constexpr size_t kNameColumns = 24;
constexpr size_t kViewColumns = 36;
constexpr size_t kInsecureColumns = 80;
constexpr size_t kIndent = 2;
constexpr size_t kKeyColumns = 10;
constexpr size_t kValueLinesMax = 12;

std::string FormatState(const v1::StatusReply& status) {
  if (!status.ready()) return "not ready: " + status.reason();
  return status.reason().empty() ? "ready" : "ready, but " + status.reason();
}

std::string FormatDrain(v1::DrainState drain) {
  switch (drain) {
    case v1::DRAIN_STATE_DRAINING:
      return "draining";
    case v1::DRAIN_STATE_DRAINED:
      return "drained; dwsctl undrain ends it";
    default:
      return "";
  }
}

std::string FormatBuild(const v1::BuildStatus& build) {
  // Only packages know their commit.
  const bool known = !build.commit().empty() && build.commit() != "unknown";
  return fmt::format("{}{}, {}, protocol {}.{}",
                     known ? fmt::format("commit {}, ", Printable(build.commit(), 40)) : "",
                     Printable(build.compiler(), kNameColumns),
                     Printable(build.configuration(), kNameColumns), build.protocol_major(),
                     build.protocol_minor());
}

std::string FormatTls(const v1::StatusReply& status) {
  if (!status.tls().enabled()) return "off";
  const v1::TlsStatus& tls = status.tls();
  const auto expires = static_cast<double>(tls.expires_unix_seconds());
  std::string text = tls.identity().empty() ? "on, without an identity" : "on, " + tls.identity();
  if (expires <= 0) return text;
  text += ", until " + FormatUnixTime(expires);
  const double left = expires - status.unix_seconds();
  if (status.unix_seconds() <= 0) return text;
  return text + (left > 0 ? fmt::format(" (in {})", FormatSeconds(left)) : " (expired)");
}

std::string FormatInsecure(const v1::StatusReply& status) {
  std::string parts;
  for (const std::string& part : status.insecure()) {
    parts += (parts.empty() ? "" : ", ") + Printable(part, kInsecureColumns);
  }
  return "TCP without TLS: " + parts;
}

// The part below the title, which both daemons have.
std::string FormatService(const v1::StatusReply& status, size_t columns) {
  std::string text = FormatKeyLine("state", FormatState(status), columns);
  const std::string drain = FormatDrain(status.drain());
  if (!drain.empty()) text += FormatKeyLine("drain", drain, columns);
  if (status.has_build()) text += FormatKeyLine("build", FormatBuild(status.build()), columns);
  if (status.has_tls()) text += FormatKeyLine("tls", FormatTls(status), columns);
  if (status.insecure_size() > 0) {
    text += FormatKeyLine("insecure", FormatInsecure(status), columns);
  }
  return text;
}

std::string OfMax(const std::string& value, const std::string& max, bool limited) {
  return limited ? fmt::format("{} of {}", value, max) : value;
}

// `where` describes the daemon's place in the broadcast: v1::BroadcastStatus or
// v1::ReceivedBroadcasts.
std::string FormatOnDemand(const v1::OnDemandStatus& status) {
  if (status.phase().empty()) {
    return fmt::format("{} ranks; this one has not joined", status.ranks());
  }
  std::string text = fmt::format(
      "minibatch {}, attempt {}: {} for {}, {}waits for {}; {} attempts abandoned",
      status.minibatch(), status.attempt(), status.phase(), FormatSeconds(status.phase_seconds()),
      status.rank_present() ? "" : "without its rank, ", status.waits_for(), status.abandoned());
  if (status.host_accumulators_bytes() == 0) return text;
  return text +
         fmt::format("; {} of sums for other hosts", FormatBytes(status.host_accumulators_bytes()));
}

// The line of what the rank's process has put for other ranks, and that of the round it is in.
std::string FormatObjects(const v1::ObjectsStatus& objects, size_t columns) {
  std::string text =
      FormatKeyLine("objects",
                    fmt::format("{}, {} of {}; sent {}, received {}; {} puts refused",
                                objects.objects(), FormatBytes(objects.held_bytes()),
                                FormatBytes(objects.bytes_max()), FormatBytes(objects.sent_bytes()),
                                FormatBytes(objects.received_bytes()), objects.puts_refused()),
                    columns);
  if (objects.last_put().empty()) return text;
  std::string round = fmt::format("{} behind it; put {} {} ago{}", objects.rounds(),
                                  objects.last_put(), FormatSeconds(objects.last_put_seconds()),
                                  objects.attached() ? "" : ", and its process is gone");
  if (!objects.waits_for().empty()) {
    round += fmt::format("; has waited {} for {}", FormatSeconds(objects.wait_seconds()),
                         objects.waits_for());
  }
  if (objects.waits() > 0) {
    round += fmt::format("; {} calls of other ranks wait for what it puts next", objects.waits());
  }
  return text + FormatKeyLine("round", round, columns);
}

std::string FormatBroadcast(const auto& broadcast, const std::string& where, size_t columns) {
  return FormatKeyLine("broadcast",
                       fmt::format("{}; {} succeeded, {} failed",
                                   broadcast.members() > 0 ? where : "none, versions are fetched",
                                   broadcast.broadcasts(), broadcast.failed()),
                       columns);
}

// `folder` is the state of a folder that versions are published to: v1::SharedStatus or
// v1::SlimeStatus.
std::string FormatFolder(const char* key, const auto& folder, const std::string& readers,
                         size_t columns) {
  std::string text =
      fmt::format("{} in {}{}",
                  folder.newest_version() == 0 ? "no version"
                                               : fmt::format("version {}", folder.newest_version()),
                  folder.folder(), readers);
  if (!folder.failing().empty()) text += "; failing: " + folder.failing();
  return FormatKeyLine(key, text, columns);
}

std::string FormatViewTable(const v1::SenderStatus& sender) {
  if (sender.views().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const v1::ViewStatus& view : sender.views()) {
    rows.push_back({Printable(view.name(), kViewColumns), FormatVersion(view.newest_version()),
                    FormatBytes(view.snapshot_bytes()), FormatBytes(view.retained_bytes()),
                    fmt::format("{}", view.receivers())});
  }
  return "\n" + FormatTable({{.title = "view", .left = true},
                             {.title = "newest"},
                             {.title = "snapshot"},
                             {.title = "deltas"},
                             {.title = "receivers"}},
                            rows, kIndent);
}

std::string FormatSender(const v1::SenderStatus& sender, size_t columns) {
  const std::string retained =
      OfMax(FormatBytes(sender.retained_bytes()), FormatBytes(sender.retain_bytes_max()),
            sender.retain_bytes_max() > 0);
  const std::string versions =
      OfMax(fmt::format("{}", sender.versions_size()),
            fmt::format("{}", sender.retain_versions_max()), sender.retain_versions_max() > 0);
  std::string text =
      FormatKeyLine("stream", FormatStream(sender.stream()), columns) +
      FormatKeyLine("rank",
                    fmt::format("{} of {}, epoch {}", sender.trainer_rank(), sender.world_size(),
                                sender.rank_epoch()),
                    columns) +
      FormatKeyLine("trainer", sender.trainer_present() ? "present" : "absent", columns) +
      FormatKeyLine("newest", FormatVersion(sender.newest_version()), columns) +
      FormatKeyLine("memory",
                    fmt::format("snapshot {}, retained deltas {}, versions {}",
                                FormatBytes(sender.snapshot_bytes()), retained, versions),
                    columns) +
      FormatRows(sender, columns);
  if (sender.has_broadcast()) {
    const v1::BroadcastStatus& broadcast = sender.broadcast();
    text += FormatBroadcast(
        broadcast,
        fmt::format("epoch {} with {} receivers", broadcast.epoch(), broadcast.members()), columns);
  }
  if (sender.has_shared()) {
    const v1::SharedStatus& shared = sender.shared();
    text +=
        FormatFolder("shared", shared, fmt::format(", {} receivers", shared.receivers()), columns);
  }
  if (sender.fabric() != "off" && !sender.fabric().empty()) {
    text += FormatKeyLine("fabric", sender.fabric(), columns);
  }
  if (sender.has_on_demand()) {
    text += FormatKeyLine("on demand", FormatOnDemand(sender.on_demand()), columns);
    for (const std::string& gather : sender.on_demand().gathers()) {
      text += FormatKeyLine("gather", gather, columns);
    }
    const v1::ObjectsStatus& objects = sender.on_demand().objects();
    if (objects.attached() || objects.put_bytes() > 0) text += FormatObjects(objects, columns);
  }
  if (sender.has_slime()) text += FormatFolder("slime", sender.slime(), "", columns);
  const bool dense = sender.density().dense_groups() > 0 || sender.density().version_dense();
  if (dense) text += FormatKeyLine("dense", FormatDensity(sender.density()), columns);
  if (!sender.density().worst().empty()) text += "\n" + FormatDenseGroups(sender.density());
  if (!sender.versions().empty()) text += "\n" + FormatVersionTable(sender, kVersionsShown);
  return text + FormatViewTable(sender) + "\n" + FormatReceiverTable(sender, columns);
}

std::string FormatValue(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  const auto named = [&](const char* unit) { return field.name().find(unit) != std::string::npos; };
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) return values.GetString(message, &field);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && named("seconds")) {
    return FormatSeconds(values.GetDouble(message, &field));
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && named("_bytes")) {
    return FormatBytes(values.GetUInt64(message, &field));
  }
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(message, &field, -1, &text);
  return text;
}

std::string FormatEngine(const v1::ReceiverStatus& receiver) {
  if (receiver.engine_ranks().empty()) return "  no engine rank has attached\n";
  std::vector<std::vector<std::string>> rows;
  for (const v1::EngineRankStatus& rank : receiver.engine_ranks()) {
    rows.push_back(
        {fmt::format("{}", rank.engine_rank()), rank.attached() ? "attached" : "detached",
         rank.generating() ? "generating" : "paused", fmt::format("{}", rank.generation()),
         Printable(fmt::format("{}", fmt::join(rank.memory(), " ")), kNameColumns),
         Printable(rank.client(), kNameColumns)});
  }
  return FormatTable({{.title = "engine rank"},
                      {.title = "state", .left = true},
                      {.title = "engine", .left = true},
                      {.title = "generation"},
                      {.title = "memory", .left = true},
                      {.title = "client", .left = true}},
                     rows, kIndent);
}

std::string FormatScrub(const v1::ReceiverStatus& receiver, double now_unix_seconds) {
  if (receiver.scrub_bytes_per_second_max() == 0) return "off";
  const double target = receiver.scrub_pass_seconds_target();
  const double expected = receiver.scrub_pass_seconds_expected();
  std::string rate = FormatBytes(receiver.scrub_bytes_per_second_max()) + "/s";
  if (target > 0) rate = fmt::format("a pass every {}, at most {}", FormatSeconds(target), rate);
  if (target > 0 && expected > target * 1.01) {  // 1 % tolerance for rounding
    rate += fmt::format(", which makes it {}", FormatSeconds(expected));
  }
  if (receiver.scrub_passes() == 0) return rate + ", no full pass yet";
  const double age = std::max(0.0, now_unix_seconds - receiver.scrub_last_pass_unix_seconds());
  return fmt::format("{}, {} full passes, the last {} ago", rate, receiver.scrub_passes(),
                     FormatSeconds(age));
}

// Empty if the status has no age: 0 must not be shown as "now".
std::string FormatAge(const v1::ReceiverStatus& receiver, size_t columns) {
  if (receiver.seconds_since_version() <= 0) return "";
  std::string text = FormatSeconds(receiver.seconds_since_version()) + " with this version";
  if (receiver.seconds_without_sender() > 0) {
    text += fmt::format(", {} without an accepted sender{}",
                        FormatSeconds(receiver.seconds_without_sender()),
                        receiver.stale() ? ": stale" : "");
  }
  return FormatKeyLine("age", text, columns);
}

// Nothing for members of a group, and for followers.
std::string FormatPolicy(const v1::ReceiverStatus& receiver, size_t columns) {
  if (receiver.commit_policy().empty()) return "";
  std::string text = Printable(receiver.commit_policy(), kNameColumns);
  if (receiver.held_seconds() > 0) {
    const bool staged = receiver.stage() == "staged" && receiver.target_version() > 0;
    text += fmt::format(", holds {}{} for {}, {} version{} behind",
                        staged ? "version " + FormatVersion(receiver.target_version()) : "versions",
                        staged ? "" : " back", FormatSeconds(receiver.held_seconds()),
                        receiver.version_lag(), receiver.version_lag() == 1 ? "" : "s");
  }
  if (receiver.replaced_versions() > 0) {
    text += fmt::format(", {} replaced while staged", receiver.replaced_versions());
  }
  return FormatKeyLine("policy", text, columns);
}

std::string FormatReceiver(const v1::ReceiverStatus& receiver, double now_unix_seconds,
                           size_t columns) {
  if (receiver.has_follower()) return FormatFollower(receiver, columns);
  const std::string staging =
      OfMax(FormatBytes(receiver.staging_bytes()), FormatBytes(receiver.staging_bytes_max()),
            receiver.staging_bytes_max() > 0);
  const bool grouped = receiver.has_group();
  return FormatKeyLine("receiver", receiver.receiver_id(), columns) +
         (grouped ? FormatKeyLine("group", FormatGroup(receiver.group()), columns) : "") +
         FormatRows(receiver, columns) +
         FormatKeyLine("stream", FormatStream(receiver.stream()), columns) +
         FormatKeyLine(
             "committed",
             fmt::format("{}, newest offered {}", FormatVersion(receiver.committed_version()),
                         FormatVersion(receiver.newest_version())),
             columns) +
         FormatKeyLine("target", FormatTarget(receiver), columns) +
         FormatPolicy(receiver, columns) + FormatAge(receiver, columns) +
         FormatKeyLine("commits",
                       fmt::format("{}, repairs {}, refused {}", receiver.commits(),
                                   receiver.repairs(), receiver.nacks()),
                       columns) +
         FormatKeyLine("pause", FormatSeconds(receiver.last_pause_seconds()) + " (last)", columns) +
         FormatLastCommit(receiver, columns) +
         FormatKeyLine("memory", "staging " + staging, columns) +
         FormatKeyLine("scrub", FormatScrub(receiver, now_unix_seconds), columns) +
         (receiver.has_broadcast()
              ? FormatBroadcast(receiver.broadcast(),
                                fmt::format("of {} senders", receiver.broadcast().members()),
                                columns)
              : "") +
         "\n" + FormatSenderTable(receiver, columns) + "\n" + FormatEngine(receiver) +
         (grouped ? FormatGroupTable(receiver.group(), columns) : "");
}

}  // namespace

std::string FormatStream(const v1::StreamId& stream) {
  if (stream.incarnation() == 0) return "none yet";
  return fmt::format("{}:{:016x}{:016x}", stream.incarnation(), stream.id_hi(), stream.id_lo());
}

std::string FormatTitle(const v1::StatusReply& status) {
  return fmt::format("{} {}, job {}, up {}\n", Printable(status.daemon(), 16),
                     Printable(status.build_version(), 16),
                     status.job_id().empty() ? "none" : Printable(status.job_id(), kNameColumns),
                     FormatSeconds(status.uptime_seconds()));
}

std::string FormatKeyLine(std::string_view key, std::string_view value, size_t columns) {
  const size_t used = kIndent + kKeyColumns;
  const size_t left = columns > used + 20 ? columns - used : 20;
  return fmt::format("{:{}}{:<{}}{}\n", "", kIndent, key, kKeyColumns,
                     Wrapped(value, left, kValueLinesMax, used));
}

std::string FormatRows(const Message& message, size_t columns) {
  std::string text;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string& key = field.options().GetExtension(v1::row);
    if (key.empty() || !message.GetReflection()->HasField(message, &field)) continue;
    text += FormatKeyLine(key, FormatValue(message, field), columns);
  }
  return text;
}

std::string FormatStatus(const v1::StatusReply& status, size_t columns) {
  const std::string text = FormatTitle(status) + FormatService(status, columns);
  switch (status.role_case()) {
    case v1::StatusReply::kSender:
      return text + FormatSender(status.sender(), columns);
    case v1::StatusReply::kReceiver:
      return text + FormatReceiver(status.receiver(), status.unix_seconds(), columns);
    case v1::StatusReply::ROLE_NOT_SET:
      break;
  }
  return text;
}

}  // namespace dws::dwsctl
