// The entry of one changed tensor in a version folder: a payload that says how its bytes change, in
// one zstd frame. Pure.
//
//   xor         new ^ old, of every byte of the tensor
//   overwrite   u32 count | u32 byte_pos[count] | u8 value[count]: for tensors up to 4 GiB
//   xor_sparse  u64 count | u64 byte_pos[count] | u8 diff[count]: a dialect, read but not written
//   dws_runs    for each run of changed bytes:
//               LEB128 bytes since the last run's end | LEB128 size | the new bytes.
//               Only used by DWS, for redo records: applying it again, or over a half-changed
//               tensor, gives the same bytes.
//
// A size is checked against the tensor's size before anything is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/runs.h"

namespace dws::slime {

enum class Encoding : uint8_t { kXor, kOverwrite, kXorSparse, kRuns };

std::optional<Encoding> EncodingNamed(std::string_view name);
std::string_view NameOf(Encoding encoding);

// INVALID_ARGUMENT: the encoding cannot carry a tensor of this size (use xor), or is not written.
Status CheckEncodable(Encoding encoding, uint64_t tensor_bytes);

// The payload that changes `before` into `after`. INVALID_ARGUMENT: their sizes differ, a tensor
// above 4 GiB as overwrite (use xor), or xor_sparse.
Result<std::vector<std::byte>> EncodePayload(Encoding encoding, ByteSpan before, ByteSpan after);

// One zstd frame that states its content size, as Python's zstandard.compress() writes it. slime's
// level is 1; a negative one is faster.
inline constexpr int kEntryLevel = 1;
std::vector<std::byte> CompressEntry(ByteSpan payload, int level = kEntryLevel);

// Returns the size of the payload in an entry for a tensor of `tensor_bytes`. `start` is the
// beginning of the entry: at least kFrameStartBytes, or all of it. Errors as DecodeEntry.
inline constexpr size_t kFrameStartBytes = 18;  // zstd's longest frame header
Result<uint64_t> PayloadBytes(Encoding encoding, ByteSpan start, uint64_t tensor_bytes);
// The largest payload for a tensor of `tensor_bytes`, and the largest entry.
uint64_t PayloadBytesMax(Encoding encoding, uint64_t tensor_bytes);
uint64_t EntryBytesMax(Encoding encoding, uint64_t tensor_bytes);

// Returns the payload in `entry`, for a tensor of `tensor_bytes`. DATA_LOSS: the entry is not
// exactly one valid frame, its frame does not state its size, or no payload of such a tensor has
// that size. INVALID_ARGUMENT: the encoding does not support so large a tensor.
Result<std::vector<std::byte>> DecodeEntry(Encoding encoding, ByteSpan entry,
                                           uint64_t tensor_bytes);

// Applies `payload` to `tensor`. DATA_LOSS: the payload is malformed or reaches outside the tensor;
// then nothing was written.
Status ApplyPayload(Encoding encoding, ByteSpan payload, MutableByteSpan tensor);

}  // namespace dws::slime
