// The options are checked before anything is asked of the store; keys are looked for at once, so
// that a daemon without them does not start.
#include "common/transport/s3/store.h"

#include <algorithm>
#include <utility>

#include "common/transport/s3/credentials.h"

namespace dws {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kBucketBytesMax = 63;

struct Place {
  std::string bucket;
  std::string prefix;
};

bool IsBucketByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

Result<Place> PlaceOf(const std::string& path) {
  const std::string rest = path.substr(std::min(path.size(), kScheme.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  Place place{.bucket = rest.substr(0, slash), .prefix = rest.substr(slash)};
  const bool named = IsStore(path) && place.bucket.size() >= 3 &&
                     place.bucket.size() <= kBucketBytesMax &&
                     std::ranges::all_of(place.bucket, IsBucketByte);
  const bool plain =
      std::ranges::all_of(place.prefix, [](unsigned char c) { return c >= ' ' && c < 0x7f; });
  if (!named || !plain || (place.prefix + "/").find("/.") != std::string::npos ||
      place.prefix.ends_with('/') || place.prefix.find("//") != std::string::npos) {
    return InvalidArgumentError(
        "expected s3://BUCKET/PREFIX without a slash at its end, with a bucket of 3 to 63 lower "
        "case letters, digits, dots and hyphens, and a prefix in ASCII without parts that begin "
        "with a "
        "dot, found \"{}\"",
        path);
  }
  return place;
}

Result<HttpUrl> EndpointOf(const StoreOptions& options) {
  if (!options.endpoint.empty()) return ParseHttpUrl(options.endpoint);
  return ParseHttpUrl(fmt::format("https://s3.{}.amazonaws.com", options.region));
}

}  // namespace

bool IsStore(std::string_view path) { return path.starts_with(kScheme); }

Status CheckStore(const std::string& path, const StoreOptions& options, bool insecure) {
  DWS_RETURN_IF_ERROR(PlaceOf(path).status());
  DWS_ASSIGN_OR_RETURN(const HttpUrl endpoint, EndpointOf(options));
  if (!std::ranges::all_of(endpoint.path, [](char c) { return c != '%' && c != '+'; })) {
    return InvalidArgumentError("the endpoint {} has an escaped path", endpoint.ToString());
  }
  if (endpoint.tls || endpoint.IsLoopback() || insecure) return OkStatus();
  return InvalidArgumentError(
      "weights would travel unencrypted to {}: use https, or allow it with --insecure",
      endpoint.ToString());
}

Result<std::unique_ptr<s3::S3FileSystem>> OpenStore(const std::string& path,
                                                    const StoreOptions& options,
                                                    Cancellation& reads, Cancellation& writes,
                                                    const s3::Effort& effort) {
  DWS_ASSIGN_OR_RETURN(const Place place, PlaceOf(path));
  DWS_ASSIGN_OR_RETURN(HttpUrl endpoint, EndpointOf(options));
  DWS_ASSIGN_OR_RETURN(s3::CredentialSource credentials,
                       s3::OpenCredentials({.from = options.credentials,
                                            .region = options.region,
                                            .ca_file = options.ca_file,
                                            .cancellation = &writes}));
  DWS_RETURN_IF_ERROR(credentials().status());
  DWS_ASSIGN_OR_RETURN(auto client, s3::Client::Create({.endpoint = std::move(endpoint),
                                                        .bucket = place.bucket,
                                                        .region = options.region,
                                                        .ca_file = options.ca_file,
                                                        .credentials = std::move(credentials),
                                                        .reads = &reads,
                                                        .writes = &writes,
                                                        .effort = effort}));
  return std::make_unique<s3::S3FileSystem>(std::move(client), place.bucket);
}

}  // namespace dws
