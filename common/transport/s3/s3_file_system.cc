// A file of less than one part is one request. Memory of an upload: one part.
#include "common/transport/s3/s3_file_system.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/transport/shared_fs/file_writer.h"
#include "common/transport/shared_fs/remote_file.h"

namespace dws::s3 {
namespace {

constexpr size_t kPartsOfOneSize = 1'000;
constexpr size_t kPartsMax = 10'000;  // of the protocol

}  // namespace

// What was written to a temporary name. One thread at a time.
class S3FileSystem::Upload {
 public:
  Upload(const Client& client, std::string key, size_t part_bytes)
      : client_(client), key_(std::move(key)), part_bytes_(part_bytes) {}

  const std::string& key() const { return key_; }

  Status Append(ByteSpan bytes) {
    size_bytes_ += bytes.size();
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), PartBytes() - part_.size());
      part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (part_.size() == PartBytes()) DWS_RETURN_IF_ERROR(SendPart());
    }
    return OkStatus();
  }
  // The object is there when this returns OK.
  Status Complete() {
    if (id_.empty()) return client_.Put(key_, part_);
    if (!part_.empty()) DWS_RETURN_IF_ERROR(SendPart());
    Status done = client_.CompleteUpload(key_, id_, etags_);
    if (absl::IsNotFound(done)) {  // perhaps it was completed, and the answer was lost
      DWS_ASSIGN_OR_RETURN(const ObjectState there, client_.Head(key_));
      if (there.size_bytes == size_bytes_) done = OkStatus();
    }
    if (done.ok()) id_.clear();
    return done;
  }
  Status Abort() {
    part_.clear();
    if (id_.empty()) return OkStatus();
    return client_.AbortUpload(key_, std::exchange(id_, ""));
  }

 private:
  size_t PartBytes() const {
    const size_t doubled = std::min<size_t>(etags_.size() / kPartsOfOneSize, 2);
    return std::min<size_t>(part_bytes_ << doubled, kObjectBodyBytesMax);
  }
  Status SendPart() {
    if (etags_.size() == kPartsMax) {
      return ResourceExhaustedError("s3 object {}: more than {} parts", key_, kPartsMax);
    }
    if (id_.empty()) {
      DWS_ASSIGN_OR_RETURN(id_, client_.BeginUpload(key_));
    }
    DWS_ASSIGN_OR_RETURN(std::string etag, client_.UploadPart(key_, id_, etags_.size() + 1, part_));
    etags_.push_back(std::move(etag));
    part_.clear();
    return OkStatus();
  }

  const Client& client_;
  const std::string key_;
  const size_t part_bytes_;
  std::string id_;  // "": nothing was sent yet
  uint64_t size_bytes_ = 0;
  std::vector<std::string> etags_;
  std::vector<std::byte> part_;
};

// The open file: the upload lasts until it is renamed or removed.
class S3FileSystem::Part final : public AppendFile {
 public:
  explicit Part(std::shared_ptr<Upload> upload) : upload_(std::move(upload)) {}
  Status Append(ByteSpan bytes) override { return upload_->Append(bytes); }
  Status Sync() override { return OkStatus(); }  // Rename makes all of it durable

 private:
  const std::shared_ptr<Upload> upload_;
};

S3FileSystem::S3FileSystem(std::unique_ptr<Client> client, std::string bucket, size_t part_bytes)
    : client_(std::move(client)),
      root_(fmt::format("s3://{}/", bucket)),
      part_bytes_(part_bytes),
      ahead_(shared::kRequestsAtOnceMax, shared::kRequestsQueuedMax) {}

S3FileSystem::~S3FileSystem() = default;

Result<std::string> S3FileSystem::KeyOf(const std::string& path) const {
  if (!path.starts_with(root_)) {
    return InvalidArgumentError("{}: expected a path below {}", path, root_);
  }
  return path.substr(root_.size());
}

Status S3FileSystem::AbortUploads(const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::string key, KeyOf(folder));
  DWS_ASSIGN_OR_RETURN(const auto uploads, client_->Uploads(key + "/"));
  for (const auto& [begun, upload] : uploads) {
    DWS_RETURN_IF_ERROR(client_->AbortUpload(begun, upload));
    LogInfo("upload_given_up", {{"key", begun}});
  }
  return OkStatus();
}

Result<std::vector<std::byte>> S3FileSystem::ReadFile(const std::string& path,
                                                      uint64_t size_bytes_max) {
  DWS_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
  DWS_ASSIGN_OR_RETURN(const std::string body, client_->Get(key, size_bytes_max));
  if (body.size() > size_bytes_max) {
    return ResourceExhaustedError("{} has {} bytes, expected at most {}", path, body.size(),
                                  size_bytes_max);
  }
  const ByteSpan bytes = AsBytes(body);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<std::unique_ptr<ReadableFile>> S3FileSystem::OpenForRead(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(std::string key, KeyOf(path));
  DWS_ASSIGN_OR_RETURN(ObjectState info, client_->Head(key));
  return std::make_unique<shared::RemoteFile>(
      shared::RemoteFile::Options{.size_bytes = info.size_bytes,
                                  .request_bytes_max = kObjectBodyBytesMax},
      [client = client_.get(), key = std::move(key),
       etag = std::move(info.etag)](shared::FileRange range) {
        return client->GetRange(key, range.offset, range.size_bytes, etag);
      },
      ahead_);
}

Result<std::unique_ptr<AppendFile>> S3FileSystem::OpenForAppend(const std::string& path) {
  return UnimplementedError("{}: an object of a store is not appended to", path);
}

Result<std::unique_ptr<AppendFile>> S3FileSystem::Create(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(std::string key, KeyOf(path));
  if (!key.ends_with(shared::kTemporaryEnding)) {
    return InvalidArgumentError("{}: expected a name that ends with {}", path,
                                shared::kTemporaryEnding);
  }
  key.resize(key.size() - shared::kTemporaryEnding.size());
  const auto upload = std::make_shared<Upload>(*client_, std::move(key), part_bytes_);
  std::shared_ptr<Upload> before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(uploads_[path], upload);
  }
  if (before != nullptr) DWS_RETURN_IF_ERROR(before->Abort());
  return std::make_unique<Part>(upload);
}

Status S3FileSystem::ReplaceFile(const std::string& path, ByteSpan bytes) {
  DWS_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
  if (bytes.size() <= part_bytes_) return client_->Put(key, bytes);
  Upload upload(*client_, key, part_bytes_);
  Status written = upload.Append(bytes);
  if (written.ok()) written = upload.Complete();
  if (!written.ok()) (void)upload.Abort();
  return written;
}

Status S3FileSystem::Rename(const std::string& from, const std::string& to) {
  DWS_ASSIGN_OR_RETURN(const std::string key, KeyOf(to));
  std::shared_ptr<Upload> upload;
  {
    MutexLock lock(mutex_);
    const auto found = uploads_.find(from);
    if (found != uploads_.end()) upload = found->second;
  }
  if (upload == nullptr || upload->key() != key) {
    return FailedPreconditionError("{} cannot become {}: an object is renamed once, when it ends",
                                   from, to);
  }
  DWS_RETURN_IF_ERROR(upload->Complete());
  MutexLock lock(mutex_);
  uploads_.erase(from);
  return OkStatus();
}

Result<std::vector<std::string>> S3FileSystem::List(const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(std::string prefix, KeyOf(folder + "/"));
  DWS_ASSIGN_OR_RETURN(const Listing listing, client_->List(prefix));
  std::vector<std::string> names;
  for (const std::string& key : listing.keys) {
    if (key.size() > prefix.size()) names.push_back(key.substr(prefix.size()));
  }
  for (const std::string& each : listing.folders) {
    if (each.size() <= prefix.size() + 1) continue;
    names.push_back(each.substr(prefix.size(), each.size() - prefix.size() - 1));
  }
  std::ranges::sort(names);
  return names;
}

Status S3FileSystem::MakeFolders(const std::string& folder) { return KeyOf(folder + "/").status(); }

Status S3FileSystem::Remove(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const std::string key, KeyOf(path));
  std::shared_ptr<Upload> upload;
  {
    MutexLock lock(mutex_);
    const auto found = uploads_.find(path);
    if (found != uploads_.end()) {
      upload = std::move(found->second);
      uploads_.erase(found);
    }
  }
  return upload != nullptr ? upload->Abort() : client_->Delete(key);
}

Status S3FileSystem::RemoveFolder(const std::string& folder) {
  return KeyOf(folder + "/").status();
}

Result<std::unique_ptr<FileLock>> S3FileSystem::Lock(const std::string& path) {
  return UnimplementedError("{}: a store has no locks", path);
}

}  // namespace dws::s3
