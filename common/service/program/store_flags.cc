// They are the shared directory's, so that both daemons have them in one place of their files.
#include "common/service/program/store_flags.h"

#include <CLI/CLI.hpp>

#include "common/base/printable.h"
#include "common/transport/http_files/http_file_system.h"

namespace dws {
namespace {

// A scheme that is not known, a relative path or a list with a blank would be a folder of this
// machine, which is made.
Status CheckPlace(const std::string& dir) {
  const bool url = IsStore(dir) || IsHttpBase(dir);
  const size_t rest = url ? dir.find("://") + 3 : 0;
  if ((url || dir.starts_with('/')) && dir.find("://", rest) == std::string::npos &&
      (!url || dir.find(',') == std::string::npos)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "expected an absolute path, s3://BUCKET/PREFIX, http://HOST/PATH or https://HOST/PATH, or "
      "for "
      "a receiver several of them with commas and no blanks between them, found '{}'",
      EscapeUnprintable(dir));
}

}  // namespace

void AddStoreFlags(CLI::App& app, StoreOptions& store) {
  app.add_option("--shared-endpoint", store.endpoint,
                 "URL of the store that --shared-dir=s3://BUCKET/PREFIX is in (default: AWS's of "
                 "the region)")
      ->type_name("URL");
  app.add_option("--shared-region", store.region, "Region of that bucket, for signatures")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--shared-credentials", store.credentials,
                 "Keys for that store: a file in AWS's form, read again for each request; keys in "
                 "the environment; those that a web identity or the metadata of an instance or "
                 "container get (default: what AWS's variables in the environment say)")
      ->type_name("PATH|environment|web-identity|instance");
  app.add_option(
         "--shared-ca", store.ca_file,
         "CAs that prove that store, or an HTTP server (default: those that this machine trusts)")
      ->type_name("PATH");
}

void FinishStoreFlags(Config& config, const std::vector<std::string>& dirs,
                      const StoreOptions& store, bool insecure) {
  bool asks_store = false;
  bool asks_http = false;
  for (const std::string& dir : dirs) {
    asks_store = asks_store || IsStore(dir);
    asks_http = asks_http || IsHttpBase(dir);
    Status usable = dir.empty() ? OkStatus() : CheckPlace(dir);
    if (usable.ok() && IsStore(dir)) usable = CheckStore(dir, store, insecure);
    if (usable.ok() && IsHttpBase(dir)) usable = CheckHttpBase(dir, insecure);
    if (!usable.ok()) config.Reject("shared-dir", Message(usable));
  }
  if (asks_store) return;
  if (!store.endpoint.empty() || !store.credentials.empty() ||
      (!store.ca_file.empty() && !asks_http)) {
    config.Reject("shared-dir",
                  "it is no store, as s3://BUCKET/PREFIX, and shared-endpoint, "
                  "shared-credentials or shared-ca is given");
  }
}

void FillStoreStatus(const s3::S3FileSystem& store, TimePoint now, v1::StoreStatus& status) {
  const s3::Traffic traffic = store.traffic();
  status.mutable_requests()->insert(traffic.requests.begin(), traffic.requests.end());
  status.set_retries(traffic.retries);
  status.set_sent_bytes(traffic.sent_bytes);
  status.set_received_bytes(traffic.received_bytes);
  status.set_failure(traffic.failure);
  if (traffic.failed_at.has_value()) {
    status.set_failure_age_seconds(ToSeconds(now - *traffic.failed_at));
  }
}

}  // namespace dws
