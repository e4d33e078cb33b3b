#include "common/formats/slime_delta/version_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/payload.h"

namespace dws::slime {

namespace {

constexpr int kRunsLevel = -5;  // a redo record is read once, by us

Status CheckNumber(uint64_t version) {
  if (version > 0 && version <= limits::kSlimeVersionMax) return OkStatus();
  return InvalidArgumentError("version {} cannot be published, expected 1 to {}", version,
                              limits::kSlimeVersionMax);
}

// Makes the folder and removes the files that an earlier writer left in it: they must not be
// published with the new ones.
Status MakeClean(FileSystem& files, const std::string& path) {
  DWS_RETURN_IF_ERROR(files.MakeFolders(path));
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(path));
  for (const std::string& name : names) DWS_RETURN_IF_ERROR(files.Remove(path + "/" + name));
  return OkStatus();
}

}  // namespace

std::string UnfinishedFolderName(uint64_t version, const std::string& writer) {
  return fmt::format(".{}{}{}.new", VersionFolderName(version), writer.empty() ? "" : ".", writer);
}

Result<std::string> BeginVersionFolder(FileSystem& files, const std::string& folder,
                                       uint64_t version, const std::string& writer) {
  DWS_RETURN_IF_ERROR(CheckNumber(version));
  const std::string published = folder + "/" + VersionFolderName(version);
  const Result<std::vector<std::string>> there = files.List(published);
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  if (there.ok() && !there->empty()) return AlreadyExistsError("{} exists already", published);
  const std::string path = folder + "/" + UnfinishedFolderName(version, writer);
  DWS_RETURN_IF_ERROR(MakeClean(files, path));
  return path;
}

Status PublishVersionFolder(FileSystem& files, const std::string& folder, uint64_t version,
                            const std::string& writer) {
  const std::string unfinished = folder + "/" + UnfinishedFolderName(version, writer);
  const std::string published = folder + "/" + VersionFolderName(version);
  const Status renamed = files.Rename(unfinished, published);
  const auto has_files = [&](const std::string& path) {
    const auto names = files.List(path);
    return names.ok() && !names->empty();
  };
  if (renamed.ok() || !has_files(unfinished) || !has_files(published)) return renamed;
  return AlreadyExistsError("{} exists already", published);
}

Result<std::unique_ptr<VersionWriter>> VersionWriter::Create(FileSystem& files,
                                                             const std::string& folder,
                                                             const VersionWriteOptions& options) {
  std::string path = folder + "/" + VersionFolderName(options.version);
  if (options.in_place) {
    DWS_RETURN_IF_ERROR(CheckNumber(options.version));
    const Result<std::vector<std::string>> there = files.List(path);
    if (there.ok() && std::binary_search(there->begin(), there->end(), safetensors::kIndexFile)) {
      return AlreadyExistsError("{} exists already", path);
    }
    DWS_RETURN_IF_ERROR(MakeClean(files, path));
  } else {
    DWS_ASSIGN_OR_RETURN(path, BeginVersionFolder(files, folder, options.version, options.writer));
  }
  return std::unique_ptr<VersionWriter>(new VersionWriter(files, folder, std::move(path), options));
}

Result<EntryBuilder> VersionWriter::NewEntry(const std::string& name, uint64_t tensor_bytes) {
  Result<EntryBuilder> entry =
      EntryBuilder::Create(options_.encoding, options_.checksum, tensor_bytes);
  if (!entry.ok()) return Keep(Annotate(entry.status(), "tensor '" + name + "'"));
  return entry;
}

Status VersionWriter::Add(const std::string& name, EntryBuilder builder) {
  Result<std::optional<EntryBuilder::Entry>> made = builder.Finish(options_.unchanged_too);
  if (!made.ok()) return Keep(Annotate(made.status(), "tensor '" + name + "'"));
  if (!made->has_value()) return OkStatus();
  return AddEntry(
      {.name = name, .digest = std::move((*made)->digest), .bytes = std::move((*made)->bytes)});
}

Status VersionWriter::Add(const std::string& name, ByteSpan before, ByteSpan after) {
  if (before.size() != after.size()) {
    return Keep(InvalidArgumentError(
        "tensor '{}': {} bytes before and {} after: a delta keeps a tensor's size", name,
        before.size(), after.size()));
  }
  if (after.empty() || std::memcmp(before.data(), after.data(), after.size()) == 0) {
    return OkStatus();
  }
  DWS_ASSIGN_OR_RETURN(EntryBuilder entry, NewEntry(name, after.size()));
  entry.Add(before, after);
  return Add(name, std::move(entry));
}

Status VersionWriter::AddRuns(const std::string& name, std::string digest,
                              std::vector<std::byte> payload) {
  DWS_CHECK(options_.encoding == Encoding::kRuns);
  if (payload.empty()) return OkStatus();
  return AddEntry(
      {.name = name, .digest = std::move(digest), .bytes = CompressEntry(payload, kRunsLevel)});
}

Status VersionWriter::AddCompressed(const std::string& name, std::string digest,
                                    std::vector<std::byte> entry) {
  return AddEntry({.name = name, .digest = std::move(digest), .bytes = std::move(entry)});
}

Status VersionWriter::AddEntry(Entry entry) {
  std::vector<Entry> shard;
  size_t number = 0;
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(error_);
    if (!shard_of_.emplace(entry.name, shard_count_).second) {
      error_ = InvalidArgumentError("tensor '{}' was added twice", entry.name);
      return error_;
    }
    waiting_bytes_ += entry.bytes.size();
    entry_bytes_ += entry.bytes.size();
    waiting_.push_back(std::move(entry));
    if (waiting_bytes_ < options_.shard_bytes_max) return OkStatus();
    shard = std::exchange(waiting_, {});
    waiting_bytes_ = 0;
    number = shard_count_++;
  }
  return Keep(WriteShard(number, shard));
}

Status VersionWriter::Keep(Status status) {
  if (status.ok()) return status;
  MutexLock lock(mutex_);
  if (error_.ok()) error_ = status;
  return status;
}

std::string VersionWriter::TemporaryPath(size_t number) const {
  return fmt::format("{}/model-{:05d}.tmp", folder_, number);
}

Status VersionWriter::WriteShard(size_t number, const std::vector<Entry>& entries) {
  std::vector<safetensors::HeaderTensor> tensors;
  safetensors::Metadata digests;
  std::map<std::string_view, ByteSpan> bytes_of;
  for (const Entry& entry : entries) {
    tensors.push_back({.name = entry.name, .shape = {entry.bytes.size()}});
    digests[entry.name] = entry.digest;
    bytes_of[entry.name] = entry.bytes;
  }
  DWS_ASSIGN_OR_RETURN(const safetensors::NewHeader made,
                       safetensors::MakeHeader(digests, std::move(tensors)));
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file,
                       files_.Create(TemporaryPath(number)));
  DWS_RETURN_IF_ERROR(file->Append(made.bytes));
  for (const safetensors::HeaderTensor& tensor : made.header.tensors) {
    DWS_RETURN_IF_ERROR(file->Append(bytes_of[tensor.name]));
  }
  return file->Sync();
}

Result<VersionSummary> VersionWriter::Finish() {
  MutexLock lock(mutex_);
  DWS_RETURN_IF_ERROR(error_);
  if (!waiting_.empty()) DWS_RETURN_IF_ERROR(WriteShard(shard_count_++, waiting_));
  std::vector<std::string> names;
  for (size_t i = 0; i < shard_count_; ++i) {
    names.push_back(safetensors::MakeShardName({.number = i, .total = shard_count_}));
    DWS_RETURN_IF_ERROR(files_.Rename(TemporaryPath(i), folder_ + "/" + names.back()));
  }
  VersionIndex index{.version = options_.version,
                     .delta = DeltaDescription{.base_version = options_.version - 1,
                                               .encoding = options_.encoding,
                                               .checksum = options_.checksum},
                     .extra = options_.extra};
  for (const auto& [tensor, shard] : shard_of_) index.weight_map[tensor] = names[shard];
  DWS_ASSIGN_OR_RETURN(const std::string text, MakeVersionIndex(index));
  if (options_.part && options_.may_publish) DWS_RETURN_IF_ERROR(options_.may_publish());
  DWS_FAILPOINT("slime.write.before_index");
  DWS_RETURN_IF_ERROR(files_.ReplaceFile(folder_ + "/" + safetensors::kIndexFile, AsBytes(text)));
  if (!options_.part && options_.may_publish) DWS_RETURN_IF_ERROR(options_.may_publish());
  if (!options_.in_place && !options_.part) {
    DWS_RETURN_IF_ERROR(PublishVersionFolder(files_, parent_, options_.version, options_.writer));
  }
  return VersionSummary{.tensor_count = index.weight_map.size(),
                        .shard_count = shard_count_,
                        .entry_bytes = entry_bytes_};
}

}  // namespace dws::slime
