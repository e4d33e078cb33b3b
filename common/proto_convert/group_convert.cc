#include "common/proto_convert/group_convert.h"

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"

namespace dws {
namespace {

v1::GroupVersion ToProto(const VersionAt& at) {
  v1::GroupVersion message;
  *message.mutable_stream() = dws::ToProto(at.stream);
  message.set_version(at.version.value());
  return message;
}

Result<VersionAt> FromProto(const v1::GroupVersion& message, std::string_view where) {
  const Result<StreamId> stream = dws::FromProto(message.stream());
  if (!stream.ok()) return Annotate(stream.status(), where);
  if (message.version() == 0) {
    return InvalidArgumentError("{} names version 0, expected a version from 1", where);
  }
  return VersionAt{.stream = *stream, .version = WeightVersion(message.version())};
}

// A number that must not be 0.
Result<uint64_t> NotZero(uint64_t value, std::string_view what) {
  if (value == 0) return InvalidArgumentError("{} is 0, expected a number from 1", what);
  return value;
}

Result<GroupNonce> RoundOf(uint64_t round, std::string_view where) {
  DWS_ASSIGN_OR_RETURN(const uint64_t value, NotZero(round, fmt::format("the round of {}", where)));
  return GroupNonce(value);
}

Result<std::string> Bounded(const std::string& text, std::string_view what) {
  if (text.size() > limits::kErrorBytesMax) {
    return InvalidArgumentError("{} has {} bytes, at most {} are supported", what, text.size(),
                                limits::kErrorBytesMax);
  }
  return text;
}

std::string Cut(const std::string& text) {
  return std::string(Utf8Prefix(text, limits::kErrorBytesMax));
}

void Fill(const GroupReport& report, v1::GroupUp& message) {
  v1::GroupReport& body = *message.mutable_report();
  body.set_seen(report.seen.value());
  if (report.held.has_value()) body.set_held(report.held->value());
  if (report.generation.has_value()) body.set_generation(report.generation->value());
  if (report.live.has_value()) *body.mutable_live() = ToProto(*report.live);
  body.set_released(report.released);
}

void Fill(const GroupStaged& staged, v1::GroupUp& message) {
  v1::GroupStaged& body = *message.mutable_staged();
  body.set_round(staged.round.value());
  *body.mutable_target() = ToProto(staged.target);
  if (staged.base.has_value()) body.set_base_version(staged.base->value());
  body.set_generation(staged.generation.value());
}

void Fill(const GroupUnable& unable, v1::GroupUp& message) {
  message.mutable_unable()->set_round(unable.round.value());
  message.mutable_unable()->set_reason(Cut(unable.reason));
}

void Fill(const GroupCommitted& committed, v1::GroupUp& message) {
  v1::GroupCommitted& body = *message.mutable_committed();
  body.set_round(committed.round.value());
  *body.mutable_version() = ToProto(committed.version);
  body.set_generation(committed.generation.value());
}

std::string Packed(const std::vector<bool>& bits) {
  std::string bytes((bits.size() + 7) / 8, '\0');
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) bytes[i / 8] = static_cast<char>(bytes[i / 8] | (1 << (i % 8)));
  }
  return bytes;
}

Result<std::vector<bool>> Unpacked(const std::string& bytes, uint32_t count,
                                   std::string_view what) {
  if (bytes.size() != (size_t{count} + 7) / 8) {
    return InvalidArgumentError(
        "the list of slices that a member {} has {} bytes, expected {} for {} slices", what,
        bytes.size(), (size_t{count} + 7) / 8, count);
  }
  std::vector<bool> bits(count);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = (bytes[i / 8] >> (i % 8) & 1) != 0;
  return bits;
}

void Fill(const GroupShare& share, v1::GroupUp& message) {
  v1::GroupShare& body = *message.mutable_share();
  body.set_generation(share.generation.value());
  body.set_slice_count(static_cast<uint32_t>(share.share.held.size()));
  body.set_held(Packed(share.share.held));
  body.set_excluded(Packed(share.share.excluded));
}

void Fill(const GroupPrepare& prepare, v1::GroupDown& message) {
  *message.mutable_prepare()->mutable_target() = ToProto(prepare.target);
}
void Fill(const GroupCommit& commit, v1::GroupDown& message) {
  message.mutable_commit()->set_round(commit.round.value());
}
void Fill(const GroupAbort& abort, v1::GroupDown& message) {
  message.mutable_abort()->set_round(abort.round.value());
}
void Fill(const GroupResume& resume, v1::GroupDown& message) {
  *message.mutable_resume()->mutable_version() = ToProto(resume.version);
  message.mutable_resume()->set_generation(resume.generation.value());
}
void Fill(const GroupEnd& end, v1::GroupDown& message) {
  message.mutable_end()->set_reason(Cut(end.reason));
}

Result<GroupReport> Parse(const v1::GroupReport& body) {
  GroupReport report{.seen = GroupNonce(body.seen()), .released = body.released()};
  if (body.held() != 0) report.held = GroupNonce(body.held());
  if (body.generation() != 0) report.generation = Generation(body.generation());
  if (body.has_live()) {
    DWS_ASSIGN_OR_RETURN(report.live, FromProto(body.live(), "a group's report"));
  }
  if (report.generation.has_value() || !(report.live.has_value() || report.released)) return report;
  return InvalidArgumentError(
      "a group's report says {}, but no engine rank is attached",
      report.released ? "that the engine rank may run" : "what memory holds");
}

Result<GroupStaged> Parse(const v1::GroupStaged& body) {
  DWS_ASSIGN_OR_RETURN(const GroupNonce round, RoundOf(body.round(), "a group's STAGED"));
  DWS_ASSIGN_OR_RETURN(const VersionAt target, FromProto(body.target(), "a group's STAGED"));
  DWS_ASSIGN_OR_RETURN(const uint64_t generation,
                       NotZero(body.generation(), "the generation of a group's STAGED"));
  GroupStaged staged{
      .round = round, .target = target, .base = {}, .generation = Generation(generation)};
  if (body.base_version() != 0) staged.base = WeightVersion(body.base_version());
  return staged;
}

Result<GroupUnable> Parse(const v1::GroupUnable& body) {
  DWS_ASSIGN_OR_RETURN(const GroupNonce round, RoundOf(body.round(), "a group's UNABLE"));
  DWS_ASSIGN_OR_RETURN(std::string reason, Bounded(body.reason(), "the reason of an UNABLE"));
  return GroupUnable{.round = round, .reason = std::move(reason)};
}

Result<GroupCommitted> Parse(const v1::GroupCommitted& body) {
  DWS_ASSIGN_OR_RETURN(const GroupNonce round, RoundOf(body.round(), "a group's COMMITTED"));
  DWS_ASSIGN_OR_RETURN(const VersionAt version, FromProto(body.version(), "a group's COMMITTED"));
  DWS_ASSIGN_OR_RETURN(const uint64_t generation,
                       NotZero(body.generation(), "the generation of a group's COMMITTED"));
  return GroupCommitted{.round = round, .version = version, .generation = Generation(generation)};
}

Result<GroupShare> Parse(const v1::GroupShare& body) {
  DWS_ASSIGN_OR_RETURN(const uint64_t generation,
                       NotZero(body.generation(), "the generation of a group's share"));
  if (body.slice_count() > limits::kGroupSlicesMax) {
    return InvalidArgumentError("a member's share has {} slices, at most {} are supported",
                                body.slice_count(), limits::kGroupSlicesMax);
  }
  DWS_ASSIGN_OR_RETURN(std::vector<bool> held, Unpacked(body.held(), body.slice_count(), "holds"));
  DWS_ASSIGN_OR_RETURN(std::vector<bool> excluded,
                       Unpacked(body.excluded(), body.slice_count(), "excludes"));
  return GroupShare{.generation = Generation(generation),
                    .share = {.held = std::move(held), .excluded = std::move(excluded)}};
}

Result<GroupPrepare> Parse(const v1::GroupPrepare& body) {
  DWS_ASSIGN_OR_RETURN(const VersionAt target, FromProto(body.target(), "a group's PREPARE"));
  return GroupPrepare{.target = target};
}
Result<GroupCommit> Parse(const v1::GroupCommit& body) {
  DWS_ASSIGN_OR_RETURN(const GroupNonce round, RoundOf(body.round(), "a group's COMMIT"));
  return GroupCommit{.round = round};
}
Result<GroupAbort> Parse(const v1::GroupAbort& body) {
  DWS_ASSIGN_OR_RETURN(const GroupNonce round, RoundOf(body.round(), "a group's ABORT"));
  return GroupAbort{.round = round};
}
Result<GroupResume> Parse(const v1::GroupResume& body) {
  DWS_ASSIGN_OR_RETURN(const VersionAt version, FromProto(body.version(), "a group's RESUME"));
  DWS_ASSIGN_OR_RETURN(const uint64_t generation,
                       NotZero(body.generation(), "the generation of a group's RESUME"));
  return GroupResume{.version = version, .generation = Generation(generation)};
}
Result<GroupEnd> Parse(const v1::GroupEnd& body) {
  DWS_ASSIGN_OR_RETURN(std::string reason, Bounded(body.reason(), "the reason of a group's end"));
  return GroupEnd{.reason = std::move(reason)};
}

template <typename Body>
Result<std::optional<GroupUp>> Up(const Body& body) {
  DWS_ASSIGN_OR_RETURN(auto parsed, Parse(body));
  return std::optional<GroupUp>(std::move(parsed));
}

template <typename Body>
Result<std::optional<GroupDown>> Down(uint64_t nonce, const Body& body) {
  DWS_ASSIGN_OR_RETURN(const uint64_t value, NotZero(nonce, "the nonce of a group's message"));
  DWS_ASSIGN_OR_RETURN(auto parsed, Parse(body));
  return std::optional<GroupDown>({.nonce = GroupNonce(value), .body = std::move(parsed)});
}

}  // namespace

v1::GroupUp ToProto(const GroupUp& message) {
  v1::GroupUp out;
  std::visit([&out](const auto& body) { Fill(body, out); }, message);
  return out;
}

v1::GroupDown ToProto(const GroupDown& message) {
  v1::GroupDown out;
  out.set_nonce(message.nonce.value());
  std::visit([&out](const auto& body) { Fill(body, out); }, message.body);
  return out;
}

Result<std::optional<GroupUp>> FromProto(const v1::GroupUp& message) {
  switch (message.message_case()) {
    case v1::GroupUp::kReport:
      return Up(message.report());
    case v1::GroupUp::kStaged:
      return Up(message.staged());
    case v1::GroupUp::kUnable:
      return Up(message.unable());
    case v1::GroupUp::kCommitted:
      return Up(message.committed());
    case v1::GroupUp::kShare:
      return Up(message.share());
    case v1::GroupUp::kHello:
    case v1::GroupUp::MESSAGE_NOT_SET:
      break;
  }
  return std::optional<GroupUp>();
}

Result<std::optional<GroupDown>> FromProto(const v1::GroupDown& message) {
  switch (message.message_case()) {
    case v1::GroupDown::kPrepare:
      return Down(message.nonce(), message.prepare());
    case v1::GroupDown::kCommit:
      return Down(message.nonce(), message.commit());
    case v1::GroupDown::kAbort:
      return Down(message.nonce(), message.abort());
    case v1::GroupDown::kResume:
      return Down(message.nonce(), message.resume());
    case v1::GroupDown::kEnd:
      return Down(message.nonce(), message.end());
    case v1::GroupDown::kWelcome:
    case v1::GroupDown::kKeepalive:
    case v1::GroupDown::MESSAGE_NOT_SET:
      break;
  }
  return std::optional<GroupDown>();
}

}  // namespace dws
