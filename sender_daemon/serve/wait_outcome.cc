#include "sender_daemon/serve/wait_outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "proto/trainer.pb.h"

namespace dws {
namespace {

uint64_t NumberOf(std::optional<WeightVersion> version) {
  return version.value_or(WeightVersion(0)).value();
}

std::string DescribeConnected(const ReceiverBehind& receiver) {
  std::string text = fmt::format("'{}' {}", receiver.receiver_id,
                                 receiver.committed.has_value()
                                     ? fmt::format("is at version {}", receiver.committed->value())
                                     : "has committed no version of this stream");
  if (receiver.staged > receiver.committed) {
    text += fmt::format(", has staged {}", NumberOf(receiver.staged));
  }
  if (receiver.behind > Duration::zero()) {
    text += fmt::format(", behind for {:.0f} s", ToSeconds(receiver.behind));
  }
  return receiver.last_error.empty() ? text : fmt::format("{} ({})", text, receiver.last_error);
}

std::string DescribeAwaited(const ReceiverBehind& receiver) {
  return fmt::format("'{}' ({})", receiver.receiver_id, receiver.last_error);
}

std::string DescribeAbsent(const ReceiverBehind& receiver) {
  std::string text = fmt::format("'{}' for {:.0f} s", receiver.receiver_id,
                                 ToSeconds(receiver.absent.value_or(Duration::zero())));
  if (receiver.committed.has_value()) {
    text += fmt::format(", it was at version {}", receiver.committed->value());
  }
  return text;
}

// Receivers with an error first, so that they are named if there are too many.
std::string List(std::vector<ReceiverBehind> receivers,
                 std::string (*describe)(const ReceiverBehind&)) {
  std::stable_partition(receivers.begin(), receivers.end(),
                        [](const ReceiverBehind& one) { return !one.last_error.empty(); });
  std::string text;
  const size_t named = std::min(receivers.size(), limits::kWaitReceiversNamedMax);
  for (size_t i = 0; i < named; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", describe(receivers[i]));
  }
  if (named < receivers.size()) text += fmt::format(" and {} more", receivers.size() - named);
  return text;
}

std::string Wanted(const WaitOutcome& outcome, const WaitCondition& condition) {
  switch (condition.policy) {
    case WaitCondition::Policy::kAll:
      return fmt::format(
          "{}", outcome.committed.size() + outcome.missing.size() + outcome.awaited.size());
    case WaitCondition::Policy::kQuorum:
      return fmt::format("{}", condition.quorum);
    case WaitCondition::Policy::kAny:
      return "1";
  }
  return "";
}

void Fill(const ReceiverBehind& receiver, v1::ReceiverBehind& message) {
  message.set_receiver_id(receiver.receiver_id);
  message.set_committed_version(NumberOf(receiver.committed));
  message.set_staged_version(NumberOf(receiver.staged));
  message.set_behind_seconds(ToSeconds(receiver.behind));
}

void FillCounts(const WaitOutcome& outcome, v1::WaitReply& reply) {
  reply.set_committed_count(static_cast<uint32_t>(outcome.committed.size()));
  reply.set_present_count(static_cast<uint32_t>(outcome.committed.size() + outcome.missing.size() +
                                                outcome.left_out.size()));
}

}  // namespace

ReceiverBehind Awaited(std::string receiver_id) {
  return {
      .receiver_id = std::move(receiver_id),
      .last_error = "not back since the sender's restart; `dwsctl evict --receiver` removes it"};
}

void LogLeftOut(WeightVersion version, const WaitOutcome& outcome) {
  const size_t named = std::min(outcome.left_out.size(), limits::kWaitReceiversNamedMax);
  for (size_t i = 0; i < named; ++i) {
    const ReceiverBehind& receiver = outcome.left_out[i];
    LogWarning("receiver_left_out",
               {{"id", receiver.receiver_id},
                {"version", version.value()},
                {"committed", receiver.committed.value_or(WeightVersion(0)).value()},
                {"behind_seconds", ToSeconds(receiver.behind)}});
  }
}

std::string DescribeUnmet(const WaitOutcome& outcome, const WaitCondition& condition) {
  const size_t present =
      outcome.committed.size() + outcome.missing.size() + outcome.left_out.size();
  std::string text = "no receiver is connected";
  if (present > 0 || !outcome.awaited.empty()) {
    text = fmt::format("{} of {} connected receivers have committed it, expected {}",
                       outcome.committed.size(), present, Wanted(outcome, condition));
  }
  const auto add = [&text](const char* title, const std::vector<ReceiverBehind>& receivers,
                           std::string (*describe)(const ReceiverBehind&)) {
    if (!receivers.empty()) text += fmt::format("{}: {}", title, List(receivers, describe));
  };
  add("", outcome.missing, DescribeConnected);
  add("; awaited", outcome.awaited, DescribeAwaited);
  add("; left out", outcome.left_out, DescribeConnected);
  add("; not connected", outcome.absent, DescribeAbsent);
  return text;
}

void FillReply(const WaitOutcome& outcome, v1::WaitReply& reply) {
  FillCounts(outcome, reply);
  for (const std::string& id : outcome.committed) reply.add_committed(id);
  for (const auto& [receivers, add] :
       {std::pair(&outcome.missing, &v1::WaitReply::add_missing),
        std::pair(&outcome.awaited, &v1::WaitReply::add_missing),
        std::pair(&outcome.left_out, &v1::WaitReply::add_left_out)}) {
    for (const ReceiverBehind& receiver : *receivers) {
      v1::ReceiverBehind& message = *(reply.*add)();
      Fill(receiver, message);
      message.set_last_error(receiver.last_error);
    }
  }
}

std::string ShortReply(const WaitOutcome& outcome) {
  v1::WaitReply reply;
  FillCounts(outcome, reply);
  const auto fits = [&reply] { return reply.ByteSizeLong() <= limits::kWaitDetailsBytesMax; };
  // Leaves out last_error, which the status message has. Removes the entry that makes the reply too
  // long.
  const auto add = [&](const std::vector<ReceiverBehind>& receivers, auto* list) {
    for (size_t i = 0; i < std::min(receivers.size(), limits::kWaitReceiversNamedMax); ++i) {
      Fill(receivers[i], *list->Add());
      if (!fits()) return list->RemoveLast();
    }
  };
  add(outcome.missing, reply.mutable_missing());
  add(outcome.awaited, reply.mutable_missing());
  add(outcome.left_out, reply.mutable_left_out());
  for (size_t i = 0; i < std::min(outcome.committed.size(), limits::kWaitReceiversNamedMax); ++i) {
    reply.add_committed(outcome.committed[i]);
    if (fits()) continue;
    reply.mutable_committed()->RemoveLast();
    break;
  }
  DWS_CHECK(fits());
  return reply.SerializeAsString();
}

}  // namespace dws
