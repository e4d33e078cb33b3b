// Formats a daemon's status as text for people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/admin.pb.h"

namespace dws::dwsctl {

// Pure. Lines have at most `columns` columns if that is 80 or more. Names from outside are cleaned
// and shortened, reasons and errors wrapped. If there are many retained versions, the newest are
// shown and the others counted.
std::string FormatStatus(const v1::StatusReply& status, size_t columns);

// The functions below are parts of it that other commands also show.

// "3:00000000000012340000000000000000"; "none yet".
std::string FormatStream(const v1::StreamId& stream);
// "dws-sender 0.1.0, job run-7, up 3 min 12 s".
std::string FormatTitle(const v1::StatusReply& status);
// "  key       value", the value wrapped.
std::string FormatKeyLine(std::string_view key, std::string_view value, size_t columns);
// The lines of the fields that have the option (row) of proto/metric.proto.
std::string FormatRows(const google::protobuf::Message& message, size_t columns);
// The receivers of a sender, with their last errors below.
std::string FormatReceiverTable(const v1::SenderStatus& sender, size_t columns);
// The newest `shown` of the versions that a sender retains.
std::string FormatVersionTable(const v1::SenderStatus& sender, size_t shown);
// The number and size of the groups of tensors in which nearly every element changes: "2 of 12
// groups of tensors, 3.1 MiB of the newest version".
std::string FormatDensity(const v1::DensityStatus& density);
// Those of these groups that have most bytes.
std::string FormatDenseGroups(const v1::DensityStatus& density);
// The senders of a receiver, with their last errors below.
std::string FormatSenderTable(const v1::ReceiverStatus& receiver, size_t columns);
// "    rollout-1: connection refused", below a table whose rows have no room for it; "" without an
// error.
std::string FormatErrorLine(std::string_view name, std::string_view error, size_t columns);
// The commit group that a receiver is in: "engine-3, member 1 of 4, staged; leader a:7710
// connected".
std::string FormatGroup(const v1::GroupStatus& group);
// The group's members as the leader sees them, with their last errors below.
std::string FormatGroupTable(const v1::GroupStatus& group, size_t columns);
// What a receiver that follows a folder has instead of senders and engine ranks.
std::string FormatFollower(const v1::ReceiverStatus& receiver, size_t columns);
// The version in flight: "129, fetching, 45 % of 1.2 MiB", "nothing in flight".
std::string FormatTarget(const v1::ReceiverStatus& receiver);
// What the last commit changed and how long it took; "" before the first commit.
std::string FormatLastCommit(const v1::ReceiverStatus& receiver, size_t columns);

}  // namespace dws::dwsctl
