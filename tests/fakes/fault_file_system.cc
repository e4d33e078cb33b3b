#include "tests/fakes/fault_file_system.h"

#include <algorithm>
#include <utility>

namespace dws {

class FaultAppendFile final : public AppendFile {
 public:
  FaultAppendFile(FaultFileSystem& owner, std::shared_ptr<FaultFileSystem::File> file)
      : owner_(owner), file_(std::move(file)) {}

  Status Append(ByteSpan bytes) override {
    MutexLock lock(owner_.mutex_);
    const std::optional<Status> error = owner_.NextOperation();
    const ByteSpan written = error.has_value() ? bytes.first(bytes.size() / 2) : bytes;
    file_->seen.insert(file_->seen.end(), written.begin(), written.end());
    return error.value_or(OkStatus());
  }

  Status Sync() override {
    MutexLock lock(owner_.mutex_);
    if (const std::optional<Status> error = owner_.NextOperation()) return *error;
    file_->durable_bytes = file_->seen.size();
    return OkStatus();
  }

 private:
  FaultFileSystem& owner_;
  const std::shared_ptr<FaultFileSystem::File> file_;
};

class FaultReadableFile final : public ReadableFile {
 public:
  FaultReadableFile(FaultFileSystem& owner, std::shared_ptr<FaultFileSystem::File> file)
      : owner_(owner), file_(std::move(file)) {}

  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan bytes) override {
    MutexLock lock(owner_.mutex_);
    const ByteSpan all(file_->seen);
    const ByteSpan rest = all.subspan(std::min<uint64_t>(offset, all.size()));
    const ByteSpan found = rest.first(std::min(rest.size(), bytes.size()));
    std::copy(found.begin(), found.end(), bytes.begin());
    return found.size();
  }

 private:
  FaultFileSystem& owner_;
  const std::shared_ptr<FaultFileSystem::File> file_;
};

class FaultFileLock final : public FileLock {
 public:
  FaultFileLock(FaultFileSystem& owner, std::string path) : owner_(owner), path_(std::move(path)) {}
  ~FaultFileLock() override {
    MutexLock lock(owner_.mutex_);
    owner_.locked_[path_] = false;
  }

 private:
  FaultFileSystem& owner_;
  const std::string path_;
};

void FaultFileSystem::FailOperation(int n, Status error) {
  MutexLock lock(mutex_);
  fail_at_ = operations_ + n;
  error_ = std::move(error);
}

void FaultFileSystem::BeforeOperation(int n, std::function<void()> call) {
  MutexLock lock(mutex_);
  call_at_ = operations_ + n;
  call_ = std::move(call);
}

int FaultFileSystem::operation_count() const {
  MutexLock lock(mutex_);
  return operations_;
}

std::optional<Status> FaultFileSystem::NextOperation() {
  ++operations_;
  if (operations_ == call_at_) call_();
  if (operations_ != fail_at_) return std::nullopt;
  return error_;
}

void FaultFileSystem::LosePower(uint64_t kept_bytes) {
  MutexLock lock(mutex_);
  for (auto& [path, file] : files_) {
    file->seen.resize(std::min<uint64_t>(file->seen.size(), file->durable_bytes + kept_bytes));
    file->durable_bytes = file->seen.size();
  }
  locked_.clear();
}

std::vector<std::byte> FaultFileSystem::Content(const std::string& path) const {
  MutexLock lock(mutex_);
  const auto found = files_.find(path);
  return found == files_.end() ? std::vector<std::byte>() : found->second->seen;
}

void FaultFileSystem::SetContent(const std::string& path, std::vector<std::byte> content) {
  MutexLock lock(mutex_);
  files_[path] = std::make_shared<File>(File{.seen = content, .durable_bytes = content.size()});
}

void FaultFileSystem::FailReads(const std::string& path, Status error) {
  MutexLock lock(mutex_);
  unread_[path] = std::move(error);
}

Result<std::vector<std::byte>> FaultFileSystem::ReadFile(const std::string& path,
                                                         uint64_t size_bytes_max) {
  MutexLock lock(mutex_);
  if (const auto unread = unread_.find(path); unread != unread_.end()) {
    DWS_RETURN_IF_ERROR(unread->second);
  }
  const auto found = files_.find(path);
  if (found == files_.end()) return NotFoundError("no file {}", path);
  if (found->second->seen.size() > size_bytes_max) {
    return ResourceExhaustedError("{} is larger than the {} bytes allowed", path, size_bytes_max);
  }
  return found->second->seen;
}

Result<std::unique_ptr<ReadableFile>> FaultFileSystem::OpenForRead(const std::string& path) {
  MutexLock lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end()) return NotFoundError("no file {}", path);
  return std::make_unique<FaultReadableFile>(*this, found->second);
}

Result<std::unique_ptr<AppendFile>> FaultFileSystem::OpenForAppend(const std::string& path) {
  MutexLock lock(mutex_);
  std::shared_ptr<File>& file = files_[path];
  if (file == nullptr) file = std::make_shared<File>();
  return std::make_unique<FaultAppendFile>(*this, file);
}

Result<std::unique_ptr<AppendFile>> FaultFileSystem::Create(const std::string& path) {
  MutexLock lock(mutex_);
  files_[path] = std::make_shared<File>();
  return std::make_unique<FaultAppendFile>(*this, files_[path]);
}

Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  if (const std::optional<Status> error = NextOperation()) return *error;
  const auto below = [&](const std::string& path) {
    const auto first = files_.lower_bound(path + "/");
    return first != files_.end() && first->first.starts_with(path + "/");
  };
  if (below(from) && below(to)) return UnavailableError("{}: Directory not empty", to);
  std::map<std::string, std::shared_ptr<File>> moved;  // a file, or all files of a folder
  for (auto file = files_.begin(); file != files_.end();) {
    const bool in_folder = file->first.starts_with(from + "/");
    if (!in_folder && file->first != from) {
      ++file;
      continue;
    }
    moved[to + file->first.substr(from.size())] = file->second;
    file = files_.erase(file);
  }
  if (moved.empty()) return NotFoundError("no file {}", from);
  for (auto& [path, file] : moved) files_[path] = std::move(file);
  return OkStatus();
}

Status FaultFileSystem::ReplaceFile(const std::string& path, ByteSpan bytes) {
  MutexLock lock(mutex_);
  if (const std::optional<Status> error = NextOperation()) return *error;
  std::vector<std::byte> content(bytes.begin(), bytes.end());
  files_[path] = std::make_shared<File>(File{.seen = content, .durable_bytes = content.size()});
  return OkStatus();
}

Result<std::vector<std::string>> FaultFileSystem::List(const std::string& folder) {
  MutexLock lock(mutex_);
  std::vector<std::string> names;  // ascending, as the paths are
  for (const auto& [path, file] : files_) {
    if (!path.starts_with(folder + "/")) continue;
    std::string name = path.substr(folder.size() + 1);
    name.resize(std::min(name.size(), name.find('/')));
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  return names;
}

Status FaultFileSystem::MakeFolders(const std::string&) { return OkStatus(); }

Status FaultFileSystem::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  if (files_.erase(path) == 0) return NotFoundError("no file {}", path);
  return OkStatus();
}

Status FaultFileSystem::RemoveFolder(const std::string& folder) {
  MutexLock lock(mutex_);
  for (const auto& [path, file] : files_) {
    if (path.starts_with(folder + "/")) {
      return FailedPreconditionError("{} is not empty, {} is in it", folder, path);
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<FileLock>> FaultFileSystem::Lock(const std::string& path) {
  MutexLock lock(mutex_);
  if (locked_[path]) return UnavailableError("{} is locked by another process", path);
  locked_[path] = true;
  return std::make_unique<FaultFileLock>(*this, path);
}

}  // namespace dws
