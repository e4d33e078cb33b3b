// Where the keys for a store come from: a file, the environment, a web identity (STS), or the
// metadata of an instance or a container. Keys that end are renewed before they do. They are in no
// message and no log.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/wall_clock.h"
#include "common/transport/s3/signature.h"

namespace dws::s3 {

// The keys to use now. FAILED_PRECONDITION: there are none, or they cannot be used, which the
// message explains. UNAVAILABLE, DEADLINE_EXCEEDED: who gives them does not answer. Threads: safe
// from any.
using CredentialSource = std::function<Result<Credentials>()>;

struct CredentialOptions {
  // The --shared-credentials: "environment", "web-identity", "instance", or a file. "": keys in the
  // environment, else a web identity or a container's metadata if the environment names one.
  std::string from = {};
  std::string region = {};
  std::string ca_file = {};              // for an STS endpoint that the environment names
  Cancellation* cancellation = nullptr;  // ends requests for keys; null: nothing does
  std::function<std::string(const std::string& name)> environment = {};  // tests have their own
  const WallClock* wall_clock = &kSystemWallClock;
};

// Nothing is asked for yet. FAILED_PRECONDITION: the environment lacks what this source needs.
// INVALID_ARGUMENT: an address there cannot be used.
Result<CredentialSource> OpenCredentials(CredentialOptions options);

// Reads "NAME = VALUE" lines of the profile "default", as aws_access_key_id, of a file that only
// its owner and group can access. FAILED_PRECONDITION: a key is missing, or others may read it.
Result<Credentials> ReadCredentials(const std::string& path);

}  // namespace dws::s3
