// AWS's signature version 4 for requests to an S3-compatible store. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/wall_clock.h"

namespace dws::s3 {

// What a store knows a caller by.
struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // "": the keys do not end
};

// A request as it is signed. Names and values are not escaped.
struct SignedRequest {
  std::string method;
  std::string host;  // with the port, if it is not the scheme's
  std::string path;  // begins with a slash
  std::vector<std::pair<std::string, std::string>> query;
  std::vector<std::pair<std::string, std::string>> headers;  // besides those that signing adds
  ByteSpan body;
};

// For a region and a service, as "s3".
struct Scope {
  std::string region;
  std::string service;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// The headers that prove the request until 15 minutes after `now`: Authorization, x-amz-date,
// x-amz-content-sha256, and x-amz-security-token for keys that end.
Headers Sign(const SignedRequest& request, const Credentials& credentials, const Scope& scope,
             UnixTime now);

// "a=1&b=", sorted and escaped, as it is sent and signed.
std::string QueryText(std::vector<std::pair<std::string, std::string>> query);

}  // namespace dws::s3
