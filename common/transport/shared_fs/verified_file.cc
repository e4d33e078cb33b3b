// A file that is far away gets told which pieces come next: only what reads it knows that.
#include "common/transport/shared_fs/verified_file.h"

#include <algorithm>
#include <utility>

namespace dws::shared {

VerifiedFile::VerifiedFile(FileSystem& files, std::unique_ptr<ReadableFile> file, std::string path,
                           FileEntry entry)
    : files_(&files), file_(std::move(file)), path_(std::move(path)), entry_(std::move(entry)) {}

Result<VerifiedFile> VerifiedFile::Open(FileSystem& files, const std::string& folder,
                                        FileEntry entry) {
  std::string path = folder + "/" + entry.name;
  DWS_ASSIGN_OR_RETURN(auto file, files.OpenForRead(path));
  return VerifiedFile(files, std::move(file), std::move(path), std::move(entry));
}

uint64_t VerifiedFile::WillRead(const std::vector<FileRange>& ranges, uint64_t bytes_max) {
  auto* const remote = dynamic_cast<RemoteFile*>(file_.get());
  if (remote == nullptr || entry_.piece_bytes == 0) return 0;
  std::vector<FileRange> pieces;
  uint64_t total = 0;
  for (const FileRange& range : ranges) {
    const uint64_t end = std::min(range.end(), entry_.size_bytes);
    uint64_t number = range.offset / entry_.piece_bytes;
    for (; number * entry_.piece_bytes < end; ++number) {
      const uint64_t begin = number * entry_.piece_bytes;
      const bool twice = !pieces.empty() && begin <= pieces.back().offset;
      if (twice || number == piece_number_) continue;
      const uint64_t size = std::min<uint64_t>(entry_.piece_bytes, entry_.size_bytes - begin);
      pieces.push_back({.offset = begin, .size_bytes = size});
      total += size;
    }
  }
  // Few large requests, but so many that they go at once.
  const uint64_t request_bytes = std::min(total, bytes_max) / kRequestsAtOnceMax;
  std::vector<FileRange> requests;
  for (const FileRange& piece : pieces) {
    const bool joins = !requests.empty() && requests.back().end() == piece.offset &&
                       requests.back().size_bytes + piece.size_bytes <= request_bytes;
    if (joins) {
      requests.back().size_bytes += piece.size_bytes;
    } else {
      requests.push_back(piece);
    }
  }
  return remote->WillRead(std::move(requests), bytes_max);
}

Result<ByteSpan> VerifiedFile::Piece(size_t number) {
  if (number >= entry_.pieces.size()) {
    return DataLossError("{} has no piece {}, it has {}", path_, number, entry_.pieces.size());
  }
  if (number == piece_number_) return ByteSpan(piece_);
  // Set again only after the check, so that an error leaves no unchecked bytes behind as this
  // piece.
  piece_number_ = SIZE_MAX;
  Status read = ReadPiece(*file_, number);
  if (absl::IsDataLoss(read)) {
    // A cache keeps what is wrong; reading past it also puts that right.
    if (const auto fresh = files_->OpenPastCaches(path_); fresh.ok()) {
      read = ReadPiece(**fresh, number);
    }
  }
  DWS_RETURN_IF_ERROR(read);
  piece_number_ = number;
  return ByteSpan(piece_);
}

Status VerifiedFile::ReadPiece(ReadableFile& file, size_t number) {
  const uint64_t begin = uint64_t{number} * entry_.piece_bytes;
  piece_.resize(std::min<uint64_t>(entry_.piece_bytes, entry_.size_bytes - begin));
  DWS_ASSIGN_OR_RETURN(const size_t got, file.ReadAt(begin, piece_));
  if (got != piece_.size()) {
    return DataLossError("{} ends after {} bytes, its manifest says {}", path_, begin + got,
                         entry_.size_bytes);
  }
  if (!SameDigest(Sha256Of(piece_), entry_.pieces[number])) {
    return DataLossError("{}: bytes {} + {} do not have the SHA-256 of the manifest", path_, begin,
                         piece_.size());
  }
  return OkStatus();
}

Result<ByteSpan> VerifiedFile::Read(uint64_t offset, uint64_t size_bytes,
                                    std::vector<std::byte>& buffer) {
  if (offset > entry_.size_bytes || size_bytes > entry_.size_bytes - offset) {
    return DataLossError("{}: bytes {} + {} are outside its {}", path_, offset, size_bytes,
                         entry_.size_bytes);
  }
  buffer.resize(size_bytes);
  uint64_t done = 0;
  while (done < size_bytes) {
    const uint64_t at = offset + done;
    DWS_ASSIGN_OR_RETURN(const ByteSpan piece, Piece(at / entry_.piece_bytes));
    const ByteSpan rest = piece.subspan(at % entry_.piece_bytes);
    const ByteSpan part = rest.first(std::min<uint64_t>(rest.size(), size_bytes - done));
    std::copy(part.begin(), part.end(), buffer.begin() + static_cast<ptrdiff_t>(done));
    done += part.size();
  }
  return ByteSpan(buffer);
}

Result<std::vector<std::byte>> ReadVerified(FileSystem& files, const std::string& folder,
                                            const FileEntry& entry, uint64_t size_bytes_max) {
  if (entry.size_bytes > size_bytes_max) {
    return ResourceExhaustedError("{}/{} has {} bytes, at most {} are allowed", folder, entry.name,
                                  entry.size_bytes, size_bytes_max);
  }
  DWS_ASSIGN_OR_RETURN(VerifiedFile file, VerifiedFile::Open(files, folder, entry));
  std::vector<std::byte> bytes;
  DWS_RETURN_IF_ERROR(file.Read(0, entry.size_bytes, bytes).status());
  return bytes;
}

}  // namespace dws::shared
