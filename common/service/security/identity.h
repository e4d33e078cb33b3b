// Who a certificate says its owner is: URIs among its subject alternative names.
//
//   dws://JOB/publish/RANK          the sender beside a trainer rank
//   dws://JOB/receive/RECEIVER_ID   a receiver
//   dws://JOB/operate/NAME          an operator, or a tool of one
//
// JOB, RECEIVER_ID and NAME are percent-encoded as RFC 3986 wants it of a path segment; RANK is
// decimal without leading zeros. A certificate may carry several.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

enum class Role { kPublish, kReceive, kOperate };

// "publish", "receive", "operate".
std::string_view ToString(Role role);

struct Identity {
  std::string job_id;
  Role role = Role::kOperate;
  std::string name;  // decoded: a rank's number, a receiver id, a name

  friend bool operator==(const Identity&, const Identity&) = default;
};

Identity SenderIdentity(std::string job_id, uint32_t trainer_rank);
Identity ReceiverIdentity(std::string job_id, std::string receiver_id);

// One spelling for each identity: what needs no escape is not escaped, escapes are upper case.
std::string ToUri(const Identity& identity);

// True of every URI that means to be an identity, well-formed or not.
bool IsIdentityUri(std::string_view uri);

// Any spelling of an identity. INVALID_ARGUMENT, quoting `uri`: another scheme, a part missing or
// too many, an unknown role, a rank that is no number, an escape that is none, a part that is empty
// or longer than limits::kIdBytesMax, or a control character in it.
Result<Identity> ParseIdentity(std::string_view uri);

}  // namespace dws
