#include "common/formats/safetensors/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/model/limits.h"

namespace dws::safetensors {
namespace {

std::string LastPart(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Rule 3 of the header: all numbered files exist.
Status CheckNumbers(const std::vector<std::string>& names, const std::string& folder) {
  std::map<uint64_t, std::set<uint64_t>> numbers;  // by total
  for (const std::string& name : names) {
    if (const auto shard = ParseShardName(name)) numbers[shard->total].insert(shard->number);
  }
  for (const auto& [total, found] : numbers) {
    const bool whole = found.size() == total && *found.begin() == 1 && *found.rbegin() == total;
    if (!whole) {
      return DataLossError(
          "{}: has no {}, and of {} numbered files {} are there, the first is {}: a checkpoint "
          "that was not written completely, or a version that is not published yet",
          folder, kIndexFile, total, found.size(), *found.begin());
    }
  }
  return OkStatus();
}

// Rule 2 of the header. The checkpoint's tensors are already sorted and unique.
Status CheckIndex(const CheckpointIndex& index, const Checkpoint& checkpoint,
                  const std::string& folder) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const std::string& file = checkpoint.files()[tensor.file].name;
    const auto found = index.weight_map.find(tensor.name);
    if (found == index.weight_map.end()) {
      return DataLossError("{}: {} has a tensor '{}' that the index does not name", folder, file,
                           tensor.name);
    }
    if (found->second != file) {
      return DataLossError("{}: tensor '{}' is in {}, the index says {}", folder, tensor.name, file,
                           found->second);
    }
  }
  for (const auto& [name, file] : index.weight_map) {
    if (checkpoint.Find(name) == nullptr) {
      return DataLossError("{}: {} has no tensor '{}', but the index says that it has", folder,
                           file, name);
    }
  }
  return OkStatus();
}

Result<CheckpointIndex> ReadIndexFile(HeldFolder& folder, const std::string& name,
                                      const ClaimLimits& claims) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> text,
                       folder.ReadFile(name, claims.index_bytes_max));
  return ParseIndex(AsText(text), folder.path() + "/" + name, claims);
}

// The header of a file, read through its mapping or, without one, into memory.
Result<Header> ReadHeader(const MappedFile& file, const ClaimLimits& claims) {
  std::vector<std::byte> read;
  const auto start = [&](uint64_t size_bytes) -> Result<ByteSpan> {
    size_bytes = std::min(size_bytes, file.size_bytes());
    if (size_bytes == 0 || !file.bytes().empty()) return file.bytes().first(size_bytes);
    read.resize(size_bytes);
    DWS_RETURN_IF_ERROR(file.ReadAt(0, read));
    return ByteSpan(read);
  };
  DWS_ASSIGN_OR_RETURN(const ByteSpan first, start(kHeaderLengthBytes));
  DWS_ASSIGN_OR_RETURN(const uint64_t length, HeaderLength(first, file.size_bytes(),
                                                           claims.header_bytes_max, file.path()));
  DWS_ASSIGN_OR_RETURN(const ByteSpan header, start(kHeaderLengthBytes + length));
  return ParseHeaderText(AsText(header.subspan(kHeaderLengthBytes)), file.size_bytes(),
                         claims.check_tensor, file.path());
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& path, FileAccess access) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    DWS_ASSIGN_OR_RETURN(HeldFolder folder, HeldFolder::Open(path));
    return Open(folder, access);
  }
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  DWS_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path, access));
  DWS_RETURN_IF_ERROR(checkpoint.AddFile(std::move(mapping), LastPart(path), {}));
  DWS_RETURN_IF_ERROR(checkpoint.SortTensors());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::Open(HeldFolder& folder, FileAccess access,
                                    const ClaimLimits& claims) {
  Checkpoint checkpoint;
  checkpoint.path_ = folder.path();
  const std::string& path = checkpoint.path_;
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> listed, folder.List());
  DWS_ASSIGN_OR_RETURN(const WeightFiles found, WeightFilesAmong(listed, path));
  CheckpointIndex index;
  std::vector<std::string> names = found.shards;
  if (found.index.has_value()) {
    DWS_ASSIGN_OR_RETURN(index, ReadIndexFile(folder, *found.index, claims));
    std::set<std::string> named;
    for (const auto& [tensor, file] : index.weight_map) named.insert(file);
    names.assign(named.begin(), named.end());
  } else if (names.empty()) {
    return NotFoundError("{}: no safetensors files in this folder", path);
  } else {
    DWS_RETURN_IF_ERROR(CheckNumbers(names, path));
  }
  if (names.size() > limits::kCheckpointFilesMax) {
    return ResourceExhaustedError("{}: {} files, at most {} are allowed", path, names.size(),
                                  limits::kCheckpointFilesMax);
  }
  for (const std::string& name : names) {
    DWS_ASSIGN_OR_RETURN(MappedFile mapping, folder.OpenFile(name, access));
    DWS_RETURN_IF_ERROR(checkpoint.AddFile(std::move(mapping), name, claims));
  }
  DWS_RETURN_IF_ERROR(checkpoint.SortTensors());
  if (found.index.has_value()) DWS_RETURN_IF_ERROR(CheckIndex(index, checkpoint, path));
  return checkpoint;
}

Status Checkpoint::AddFile(MappedFile mapping, const std::string& name, const ClaimLimits& claims) {
  const std::string& path = mapping.path();
  DWS_ASSIGN_OR_RETURN(Header header, ReadHeader(mapping, claims));
  const bool mapped = !mapping.bytes().empty();
  if (tensors_.size() + header.tensors.size() > claims.tensors_max) {
    return ResourceExhaustedError(
        "{}: with it the checkpoint has {} tensors, at most {} are allowed", path,
        tensors_.size() + header.tensors.size(), claims.tensors_max);
  }
  for (HeaderTensor& tensor : header.tensors) {
    tensors_.push_back({.name = std::move(tensor.name),
                        .dtype = tensor.dtype,
                        .shape = std::move(tensor.shape),
                        .file = static_cast<uint32_t>(files_.size()),
                        .offset = header.content_offset + tensor.begin,
                        .size_bytes = tensor.size_bytes(),
                        .bytes = mapped ? header.BytesOf(tensor, mapping.bytes()) : ByteSpan()});
  }
  files_.push_back(
      {.name = name, .metadata = std::move(header.metadata), .mapping = std::move(mapping)});
  return OkStatus();
}

Status Checkpoint::SortTensors() {
  const auto by_name = [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return a.name < b.name;
  };
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  const auto twice = std::adjacent_find(
      tensors_.begin(), tensors_.end(),
      [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name == b.name; });
  if (twice == tensors_.end()) return OkStatus();
  return DataLossError("tensor '{}' is in two files, {} and {}", twice->name,
                       files_[twice->file].mapping.path(),
                       files_[std::next(twice)->file].mapping.path());
}

uint64_t Checkpoint::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors_) bytes += tensor.size_bytes;
  return bytes;
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const CheckpointTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

Status Checkpoint::Read(const CheckpointTensor& tensor, uint64_t offset, MutableByteSpan to) const {
  DWS_CHECK(offset + to.size() <= tensor.size_bytes);
  return files_[tensor.file].mapping.ReadAt(tensor.offset + offset, to);
}

void Checkpoint::Release(const CheckpointTensor& tensor, uint64_t offset,
                         uint64_t size_bytes) const {
  files_[tensor.file].mapping.Release(tensor.offset + offset, size_bytes);
}

void Checkpoint::StartWriteback(const CheckpointTensor& tensor, uint64_t offset,
                                uint64_t size_bytes) const {
  files_[tensor.file].mapping.StartWriteback(tensor.offset + offset, size_bytes);
}

MutableByteSpan Checkpoint::Writable(const CheckpointTensor& tensor) const {
  return files_[tensor.file].mapping.writable().subspan(tensor.offset, tensor.bytes.size());
}

Status Checkpoint::CheckIntact() const {
  for (const CheckpointFile& file : files_) DWS_RETURN_IF_ERROR(file.mapping.CheckIntact());
  return OkStatus();
}

Status Checkpoint::Sync() const {
  for (const CheckpointFile& file : files_) DWS_RETURN_IF_ERROR(file.mapping.Sync());
  return OkStatus();
}

Status Checkpoint::CheckUnchanged() const {
  for (const CheckpointFile& file : files_) DWS_RETURN_IF_ERROR(file.mapping.CheckUnchanged());
  return OkStatus();
}

}  // namespace dws::safetensors
