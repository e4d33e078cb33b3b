// Opens the store that a shared directory's path names, if it names one: "s3://BUCKET/PREFIX".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/transport/s3/s3_file_system.h"

namespace dws {

// The options --shared-endpoint and its companions.
struct StoreOptions {
  std::string endpoint;  // a URL; "": AWS's of the region
  std::string region = "us-east-1";
  std::string credentials;  // see s3::CredentialOptions
  std::string ca_file;      // "": for https, the CAs that this machine trusts
};

// Returns whether a path names a store.
bool IsStore(std::string_view path);

// OK: the path names a bucket and perhaps a prefix, and the options can be used with it.
// `insecure`: weights may travel in clear to another machine.
Status CheckStore(const std::string& path, const StoreOptions& options, bool insecure);

// `reads` and `writes` end requests, and outlive it. `effort`: for each request. Errors:
// INVALID_ARGUMENT: as CheckStore; others as s3::CredentialSource: there are no keys.
Result<std::unique_ptr<s3::S3FileSystem>> OpenStore(const std::string& path,
                                                    const StoreOptions& options,
                                                    Cancellation& reads, Cancellation& writes,
                                                    const s3::Effort& effort = {});

}  // namespace dws
