// The identities in a certificate: URIs among its subject alternative names.
//
//   dws://JOB/publish/RANK          the sender beside a trainer rank
//   dws://JOB/train/RANK            the same, if it trains on demand; it has both
//   dws://JOB/receive/RECEIVER_ID   a receiver
//   dws://JOB/operate/NAME          an operator, or an operator's tool
//
// JOB, RECEIVER_ID and NAME are percent-encoded as RFC 3986 requires for a path segment; RANK is
// decimal without leading zeros. A certificate may have several identities.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

enum class Role { kPublish, kTrain, kReceive, kOperate };

// "publish", "train", "receive", "operate".
std::string_view ToString(Role role);

// One identity, decoded.
struct Identity {
  std::string job_id;
  Role role = Role::kOperate;
  std::string name;  // a rank's number, a receiver id or a name

  friend bool operator==(const Identity&, const Identity&) = default;
};

// `role`: kPublish or kTrain.
Identity SenderIdentity(std::string job_id, uint32_t trainer_rank, Role role = Role::kPublish);
Identity ReceiverIdentity(std::string job_id, std::string receiver_id);

// The canonical spelling of an identity: only characters that need an escape are escaped, in upper
// case.
std::string ToUri(const Identity& identity);

// True for every URI with the scheme of identities, well-formed or not.
bool IsIdentityUri(std::string_view uri);

// Accepts any spelling of an identity. INVALID_ARGUMENT, quoting `uri`: another scheme, too few or
// too many parts, an unknown role, a rank that is not a number, an invalid escape, a part that is
// empty or longer than limits::kIdBytesMax, or a control character in it.
Result<Identity> ParseIdentity(std::string_view uri);

}  // namespace dws
