// A daemon's status for people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/admin.pb.h"

namespace dws::dwsctl {

// Pure. Lines of at most `columns` columns, when that is 80 or more. Names from outside are cut and
// cleaned, reasons and errors wrapped; of many retained versions the newest are shown and the
// others counted.
std::string FormatStatus(const v1::StatusReply& status, size_t columns);

// Parts of it that other commands show as well.

// "3:00000000000012340000000000000000"; "none yet".
std::string FormatStream(const v1::StreamId& stream);
// "dws-sender 0.1.0, job run-7, up 3 min 12 s".
std::string FormatTitle(const v1::StatusReply& status);
// "  key       value", the value wrapped.
std::string FormatKeyLine(std::string_view key, std::string_view value, size_t columns);
// The peers of a sender; what their last errors were below.
std::string FormatReceiverTable(const v1::SenderStatus& sender, size_t columns);
// The newest `shown` of the versions that a sender retains.
std::string FormatVersionTable(const v1::SenderStatus& sender, size_t shown);
// The groups of tensors that change nearly everywhere: "2 of 12 groups of tensors, 3.1 MiB of the
// newest version".
std::string FormatDensity(const v1::DensityStatus& density);
// Those of most bytes.
std::string FormatDenseGroups(const v1::DensityStatus& density);
// The senders of a receiver; what their last errors were below.
std::string FormatSenderTable(const v1::ReceiverStatus& receiver, size_t columns);
// "    rollout-1: connection refused", under a table whose rows have no room for it; "" without
// one.
std::string FormatErrorLine(std::string_view name, std::string_view error, size_t columns);
// The commit group that a receiver is in: "engine-3, member 1 of 4, staged; leader a:7710
// connected".
std::string FormatGroup(const v1::GroupStatus& group);
// Its members, as their leader sees them; what their last errors were below.
std::string FormatGroupTable(const v1::GroupStatus& group, size_t columns);
// What is in flight: "129, fetching, 45 % of 1.2 MiB", "nothing in flight".
std::string FormatTarget(const v1::ReceiverStatus& receiver);
// What the last commit brought and how long it took; "" before the first.
std::string FormatLastCommit(const v1::ReceiverStatus& receiver, size_t columns);

}  // namespace dws::dwsctl
