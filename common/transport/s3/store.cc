// Credentials are read again for each request: who rotates them has only to write the file.
#include "common/transport/s3/store.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include "common/service/http/secret_file.h"

namespace dws {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kFileBytesMax = 64 << 10;
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

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const size_t end = text.find_last_not_of(kBlanks);
  return std::string(text.substr(begin, end == std::string_view::npos ? 0 : end + 1 - begin));
}

// The keys in `get`'s values. `where` is for the message.
Result<s3::Credentials> KeysOf(const std::function<std::string(std::string_view)>& get,
                               std::string_view where, std::string_view id, std::string_view secret,
                               std::string_view token) {
  s3::Credentials keys{
      .access_key_id = get(id), .secret_access_key = get(secret), .session_token = get(token)};
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) {
    return FailedPreconditionError("{}: expected {} and {}, and one is missing", where, id, secret);
  }
  for (const std::string* each :
       {&keys.access_key_id, &keys.secret_access_key, &keys.session_token}) {
    if (!std::ranges::all_of(*each, [](char c) { return c > ' ' && c < 0x7f; })) {
      return FailedPreconditionError("{}: a key has blanks or unusual characters", where);
    }
  }
  return keys;
}

Result<s3::Credentials> KeysOfEnvironment() {
  const auto get = [](std::string_view name) {
    const char* const value = std::getenv(std::string(name).c_str());
    return std::string(value == nullptr ? "" : value);
  };
  return KeysOf(get, "the environment, without --shared-credentials", "AWS_ACCESS_KEY_ID",
                "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN");
}

}  // namespace

bool IsStore(std::string_view path) { return path.starts_with(kScheme); }

Result<s3::Credentials> ReadCredentials(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const std::string text,
                       ReadSecretFile(path, "the store's credentials", kFileBytesMax));
  std::map<std::string, std::string, std::less<>> values;
  bool ours = true;  // lines before the first profile, too
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string line = Trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = line.find('=');
    if (line.starts_with('[')) {
      ours = line == "[default]";
    } else if (ours && !line.starts_with('#') && equals != std::string::npos) {
      values[Trimmed(line.substr(0, equals))] = Trimmed(line.substr(equals + 1));
    }
  }
  const auto get = [&values](std::string_view name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  };
  return KeysOf(get, path, "aws_access_key_id", "aws_secret_access_key", "aws_session_token");
}

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
                                                    Cancellation& reads, Cancellation& writes) {
  DWS_ASSIGN_OR_RETURN(const Place place, PlaceOf(path));
  DWS_ASSIGN_OR_RETURN(HttpUrl endpoint, EndpointOf(options));
  std::function<Result<s3::Credentials>()> credentials = KeysOfEnvironment;
  if (!options.credentials.empty()) {
    credentials = [file = options.credentials] { return ReadCredentials(file); };
  }
  DWS_RETURN_IF_ERROR(credentials().status());
  DWS_ASSIGN_OR_RETURN(auto client, s3::Client::Create({.endpoint = std::move(endpoint),
                                                        .bucket = place.bucket,
                                                        .region = options.region,
                                                        .ca_file = options.ca_file,
                                                        .credentials = std::move(credentials),
                                                        .reads = &reads,
                                                        .writes = &writes}));
  return std::make_unique<s3::S3FileSystem>(std::move(client), place.bucket);
}

}  // namespace dws
