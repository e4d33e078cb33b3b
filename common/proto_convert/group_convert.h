// Converts the messages of a commit group between the wire and common/sync_state/group_messages.h.
// Like convert.h, it validates what arrives.
#pragma once

#include "common/base/status.h"
#include "common/sync_state/group_messages.h"
#include "proto/group.pb.h"

namespace dws {

v1::GroupUp ToProto(const GroupUp& message);
v1::GroupDown ToProto(const GroupDown& message);

// INVALID_ARGUMENT: a required field is not set, or a text is too long. nullopt: a message of the
// connection itself (hello, welcome, keepalive), or one that this version does not know.
Result<std::optional<GroupUp>> FromProto(const v1::GroupUp& message);
Result<std::optional<GroupDown>> FromProto(const v1::GroupDown& message);

}  // namespace dws
