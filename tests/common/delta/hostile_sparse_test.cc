// A tensor above 4 GiB, in files with holes: only blocks that change are read, and every offset has
// more than 32 bits.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/base/unique_fd.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/hostile_cases.h"
#include "tests/fakes/temp_folder.h"

namespace dws::samples {
namespace {

// A mapped file of zeros that takes no disk space until it is written to.
class SparseFile {
 public:
  SparseFile(const std::string& path, uint64_t size_bytes)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)), size_bytes_(size_bytes) {
    DWS_CHECK(fd_.valid() && ::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) == 0);
    void* map = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    DWS_CHECK(map != MAP_FAILED);
    bytes_ = static_cast<std::byte*>(map);
  }
  ~SparseFile() { ::munmap(bytes_, size_bytes_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;

  MutableByteSpan bytes() const { return {bytes_, size_bytes_}; }
  uint64_t BytesOnDisk() const {
    struct stat status = {};
    DWS_CHECK(::fstat(fd_.get(), &status) == 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

 private:
  UniqueFd fd_;
  uint64_t size_bytes_;
  std::byte* bytes_ = nullptr;
};

// Where block `block` lies in its slice.
struct BlockRange {
  BlockRange(const RankLayout::SliceEntry& slice, uint32_t block)
      : elements(BlockElements(slice.elements, block)),
        begin(uint64_t{block} * limits::kBlockElements * ElementBytes(slice.dtype)),
        size_bytes(uint64_t{elements} * ElementBytes(slice.dtype)) {}
  MutableByteSpan In(const SparseFile& file) const {
    return file.bytes().subspan(begin, size_bytes);
  }
  uint32_t elements;
  uint64_t begin;
  uint64_t size_bytes;
};

// The object between two files of which only `changed` blocks differ.
Bytes Seal(const RankLayout& layout, const std::vector<uint32_t>& changed, const SparseFile& before,
           const SparseFile& after) {
  const RankLayout::SliceEntry& slice = layout.slice(RankSlice(0));
  Encoding encoding{.blocks = {std::vector<EncodedBlock>(slice.blocks)},
                    .before = {Digest{.lane0 = 11, .lane1 = 12}},  // not read: stands for all zeros
                    .after = {Digest{.lane0 = 11, .lane1 = 12}}};
  BlockChanges changes;
  for (const uint32_t block : changed) {
    const BlockRange range(slice, block);
    encoding.after[0] += DiffBlock(slice.dtype, range.In(before), range.In(after),
                                   slice.BlockFirstWord(block), changes);
    encoding.blocks[0][block] = EncodeBlock(slice.dtype, changes, range.In(after), {});
  }
  return SealObject(layout, encoding, 1);
}

// Applies the blocks of the object to `file`; returns the difference of the digests it made.
Digest Apply(ByteSpan object, const RankLayout& layout, const SparseFile& file) {
  const RankLayout::SliceEntry& slice = layout.slice(RankSlice(0));
  const auto header = ParseObjectHeader(object);
  const auto manifest = ParseObjectManifest(object, layout);
  REQUIRE((header.ok() && manifest.ok()));
  Digest difference;
  DecodedBlock decoded;
  for (const FrameEntry& entry : manifest->slices.at(0).frames) {
    const auto views = ParseFrame(FrameBytes(object, *header, entry), entry);
    REQUIRE(views.ok());
    for (uint32_t i = 0; i < entry.block_count; ++i) {
      if ((*views)[i].mode == BlockMode::kEmpty) continue;
      const uint32_t block = entry.first_block + i;
      const BlockRange range(slice, block);
      REQUIRE(DecodeBlock(slice.dtype, range.elements, (*views)[i], decoded).ok());
      const uint64_t first_word = slice.BlockFirstWord(block);
      difference -= DigestBytes(range.In(file), first_word);
      ApplyBlock(slice.dtype, decoded, range.In(file));
      difference += DigestBytes(range.In(file), first_word);
    }
  }
  return difference;
}

}  // namespace

TEST_CASE("changes at the ends of a tensor above 4 GiB and around powers of two are exact",
          "[hostile]") {
  const DType dtype = GENERATE(DType::kU8, DType::kBF16, DType::kF64);
  constexpr uint64_t kFourGiB = uint64_t{1} << 32;
  const uint32_t element_bytes = ElementBytes(dtype);
  const RankLayout layout = VectorLayout(dtype, kFourGiB / element_bytes + 200'003);
  const RankLayout::SliceEntry& slice = layout.slice(RankSlice(0));
  const TempFolder folder;
  const SparseFile before(folder.File("before"), layout.size_bytes());
  const SparseFile after(folder.File("after"), layout.size_bytes());

  const auto border = static_cast<uint32_t>(kFourGiB / element_bytes / limits::kBlockElements);
  const std::vector<uint32_t> changed = {0,      border / 2 - 1, border / 2,      border - 1,
                                         border, border + 1,     slice.blocks - 1};
  for (const uint32_t block : changed) {
    const BlockRange range(slice, block);
    StoreLe(range.In(before).data(), uint8_t{0x35});
    StoreLe(range.In(after).data(), uint8_t{0x36});
    StoreLe(range.In(before).last(1).data(),
            uint8_t{0x01});  // at the end, in a tail of a few bytes
    StoreLe(range.In(after).last(1).data(), static_cast<uint8_t>(block | 2));
  }
  const Bytes object = Seal(layout, changed, before, after);
  REQUIRE(object.size() < 2048);
  const auto manifest = ParseObjectManifest(object, layout);
  REQUIRE(manifest.ok());
  REQUIRE(manifest->slices.at(0).frames.size() == 3);

  const Digest difference = Apply(object, layout, before);
  REQUIRE(manifest->slices[0].after - manifest->slices[0].before == difference);
  for (const uint32_t block : changed) {
    const BlockRange range(slice, block);
    INFO("block " << block << " at byte " << range.begin);
    REQUIRE(std::memcmp(range.In(before).data(), range.In(after).data(), range.size_bytes) == 0);
  }
  REQUIRE(before.BytesOnDisk() < (1 << 20));
}

}  // namespace dws::samples
