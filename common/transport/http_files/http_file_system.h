// Files of an HTTP server, or of caches before it, for readers of a shared directory
// (common/transport/shared_fs/LAYOUT.md): "https://HOST/PATH/a/b" is the file a/b below PATH, and
// "https://HOST/PATH/a/" the list of the folder a, as nginx's `autoindex_format json`. Nothing is
// written. Every answer is untrusted: readers check what they get.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/service/http/object_calls.h"
#include "common/transport/shared_fs/remote_file.h"

namespace dws {

// Returns whether a shared directory's path is the URL of an HTTP server.
bool IsHttpBase(std::string_view path);

// OK: it is the URL of a folder, without a slash at its end and without escaped bytes, and https,
// on this machine, or allowed in clear (`insecure`).
Status CheckHttpBase(const std::string& url, bool insecure);

// Errors. NOT_FOUND: there is no such file or folder. PERMISSION_DENIED: the server refuses, does
// not answer as expected, or is not the one that its certificate should prove. UNAVAILABLE,
// DEADLINE_EXCEEDED: it cannot be reached, is overloaded or too slow, or its answer is short or
// makes no sense; UNAVAILABLE comes after three attempts. DATA_LOSS: a file is another one than was
// opened. FAILED_PRECONDITION: all that writes. CANCELLED. They name the request.
//
// Threads: safe from any.
class HttpFileSystem final : public FileSystem {
 public:
  struct Options {
    std::string url;             // as CheckHttpBase accepts
    std::string ca_file;         // "": for https, the CAs that this machine trusts
    std::string cert_file = {};  // shown to a server that asks; "": none
    std::string key_file = {};
    Cancellation* reads = nullptr;                // ends requests, present and future; never null
    Duration attempt = std::chrono::seconds(15);  // without a byte; in all, 16 s more a MiB asked
    Duration retry_delay = std::chrono::milliseconds(100);  // doubles
  };

  // INVALID_ARGUMENT: as CheckHttpBase, or a file of certificates cannot be used.
  static Result<std::unique_ptr<HttpFileSystem>> Create(Options options);

  Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                          uint64_t size_bytes_max) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> OpenPastCaches(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;

  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status MakeFolders(const std::string& folder) override;
  Status Remove(const std::string& path) override;
  Status RemoveFolder(const std::string& folder) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

 private:
  // A file with the size and the tag that it had when it was opened.
  struct Opened {
    std::string path;
    ObjectState state;
    bool past_caches = false;
  };
  struct Request {
    HttpMethod method = HttpMethod::kGet;
    const std::string& path;
    std::vector<std::pair<std::string, std::string>> headers = {};
    uint64_t size_bytes = 0;                          // asked for, about
    uint64_t answer_bytes_max = kObjectBodyBytesMax;  // more is PERMISSION_DENIED
    const char* if_larger = "";                       // what that means, in words
  };

  HttpFileSystem(Options options, std::unique_ptr<HttpCaller> caller);
  // An answer that has what was asked for. INVALID_ARGUMENT: `path` is elsewhere.
  Result<HttpAnswer> Send(const Request& request, const AnswerCheck& check = nullptr) const;
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path, bool past_caches);
  // Exactly the bytes of the range.
  Result<std::string> ReadRange(const Opened& file, const shared::FileRange& range) const;

  const Options options_;
  const std::unique_ptr<HttpCaller> caller_;
  Executor ahead_;
};

}  // namespace dws
