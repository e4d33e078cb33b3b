#include "common/transport/shared_fs/file_writer.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"

namespace dws::shared {
namespace {

constexpr uint64_t kSyncBytes = uint64_t{256} << 20;

}  // namespace

PieceHasher::PieceHasher(std::string name, uint32_t piece_bytes) {
  entry_.name = std::move(name);
  entry_.piece_bytes = piece_bytes;
}

void PieceHasher::Add(ByteSpan bytes) {
  entry_.size_bytes += bytes.size();
  while (!bytes.empty()) {
    const ByteSpan part = bytes.first(std::min<size_t>(bytes.size(), entry_.piece_bytes - filled_));
    hash_.Add(part);
    filled_ += static_cast<uint32_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (filled_ < entry_.piece_bytes) continue;
    entry_.pieces.push_back(hash_.Finish());
    filled_ = 0;
  }
}

FileEntry PieceHasher::Finish() {
  if (filled_ > 0) entry_.pieces.push_back(hash_.Finish());
  filled_ = 0;
  return entry_;
}

FileWriter::Unfinished::~Unfinished() {
  if (!renamed) (void)files.Remove(path);
}

FileWriter::FileWriter(std::unique_ptr<Unfinished> unfinished, std::string path,
                       std::unique_ptr<AppendFile> file, PieceHasher hasher)
    : unfinished_(std::move(unfinished)),
      path_(std::move(path)),
      file_(std::move(file)),
      hasher_(std::move(hasher)) {}

Result<FileWriter> FileWriter::Create(FileSystem& files, const std::string& folder,
                                      std::string name, uint32_t piece_bytes) {
  std::string path = fmt::format("{}/{}", folder, name);
  auto unfinished = std::make_unique<Unfinished>(files, path + std::string(kTemporaryEnding));
  DWS_ASSIGN_OR_RETURN(auto file, files.Create(unfinished->path));
  return FileWriter(std::move(unfinished), std::move(path), std::move(file),
                    PieceHasher(std::move(name), piece_bytes));
}

Status FileWriter::Append(ByteSpan bytes) {
  hasher_.Add(bytes);
  DWS_RETURN_IF_ERROR(file_->Append(bytes));
  unsynced_ += bytes.size();
  if (unsynced_ < kSyncBytes) return OkStatus();
  unsynced_ = 0;
  return file_->Sync();
}

Result<FileEntry> FileWriter::Finish() {
  // Synced before the rename: a name without its temporary ending means that the bytes are durable.
  DWS_RETURN_IF_ERROR(file_->Sync());
  file_.reset();
  DWS_RETURN_IF_ERROR(unfinished_->files.Rename(unfinished_->path, path_));
  unfinished_->renamed = true;
  return hasher_.Finish();
}

Result<FileEntry> WriteWhole(FileSystem& files, const std::string& folder, std::string_view name,
                             ByteSpan bytes) {
  PieceHasher hasher{std::string(name), limits::kSharedPieceBytes};
  hasher.Add(bytes);
  DWS_RETURN_IF_ERROR(files.ReplaceFile(fmt::format("{}/{}", folder, name), bytes));
  return hasher.Finish();
}

}  // namespace dws::shared
