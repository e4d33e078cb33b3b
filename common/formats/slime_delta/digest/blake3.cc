// The tree: the leaves are chunks of 1024 bytes. The left side of a node has the largest power of
// two of chunks that leaves at least one byte for the right side. Each chunk is a chain of
// compressions of 64-byte blocks.
#include "common/formats/slime_delta/digest/blake3.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dws::slime {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kChunkBytes = 1024;
constexpr uint32_t kChunkStart = 1;
constexpr uint32_t kChunkEnd = 2;
constexpr uint32_t kParent = 4;
constexpr uint32_t kRoot = 8;

using ChainingValue = std::array<uint32_t, 8>;
using Block = std::array<uint32_t, 16>;

// SHA-256's initial values.
constexpr ChainingValue kStart = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                  0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
// The permutation of a message's words from one round to the next.
constexpr std::array<uint8_t, 16> kPermutation = {2, 6,  3,  10, 7, 0,  4,  13,
                                                  1, 11, 12, 5,  9, 14, 15, 8};
constexpr int kRounds = 7;

void Mix(Block& state, size_t a, size_t b, size_t c, size_t d, uint32_t x, uint32_t y) {
  state[a] += state[b] + x;
  state[d] = std::rotr(state[d] ^ state[a], 16);
  state[c] += state[d];
  state[b] = std::rotr(state[b] ^ state[c], 12);
  state[a] += state[b] + y;
  state[d] = std::rotr(state[d] ^ state[a], 8);
  state[c] += state[d];
  state[b] = std::rotr(state[b] ^ state[c], 7);
}

// Mixes the columns, then the diagonals.
void Round(Block& state, const Block& message) {
  for (size_t i = 0; i < 4; ++i) {
    Mix(state, i, 4 + i, 8 + i, 12 + i, message[2 * i], message[2 * i + 1]);
  }
  for (size_t i = 0; i < 4; ++i) {
    Mix(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, message[8 + 2 * i],
        message[9 + 2 * i]);
  }
}

struct Position {
  uint64_t chunk = 0;
  uint32_t block_bytes = 0;
  uint32_t flags = 0;
};

ChainingValue Compress(const ChainingValue& chain, Block message, const Position& position) {
  Block state = {chain[0],
                 chain[1],
                 chain[2],
                 chain[3],
                 chain[4],
                 chain[5],
                 chain[6],
                 chain[7],
                 kStart[0],
                 kStart[1],
                 kStart[2],
                 kStart[3],
                 static_cast<uint32_t>(position.chunk),
                 static_cast<uint32_t>(position.chunk >> 32),
                 position.block_bytes,
                 position.flags};
  for (int round = 0; round < kRounds; ++round) {
    if (round != 0) {
      Block moved;
      for (size_t i = 0; i < moved.size(); ++i) moved[i] = message[kPermutation[i]];
      message = moved;
    }
    Round(state, message);
  }
  ChainingValue result;
  for (size_t i = 0; i < result.size(); ++i) result[i] = state[i] ^ state[i + 8];
  return result;
}

ChainingValue HashChunk(ByteSpan bytes, uint64_t chunk, uint32_t root) {
  ChainingValue chain = kStart;
  uint32_t flags = kChunkStart;
  while (true) {
    const size_t size = std::min(bytes.size(), kBlockBytes);
    Block message = {};
    if (size != 0) std::memcpy(message.data(), bytes.data(), size);
    bytes = bytes.subspan(size);
    if (bytes.empty()) flags |= kChunkEnd | root;
    chain = Compress(chain, message,
                     {.chunk = chunk, .block_bytes = static_cast<uint32_t>(size), .flags = flags});
    if (bytes.empty()) return chain;
    flags = 0;
  }
}

// The parent of two subtrees.
ChainingValue Parent(const ChainingValue& left, const ChainingValue& right, uint32_t root) {
  Block message;
  std::copy(left.begin(), left.end(), message.begin());
  std::copy(right.begin(), right.end(), message.begin() + 8);
  return Compress(kStart, message, {.block_bytes = kBlockBytes, .flags = kParent | root});
}

}  // namespace

void Blake3::Update(ByteSpan bytes) {
  while (!bytes.empty()) {
    if (chunk_.size() == kChunkBytes) {  // more bytes follow, so this chunk is not the last one
      ChainingValue value = HashChunk(chunk_, chunks_++, 0);
      chunk_.clear();
      // Each zero bit at the end of the number of chunks is a subtree that is whole now.
      for (uint64_t count = chunks_; count % 2 == 0; count /= 2) {
        value = Parent(stack_.back(), value, 0);
        stack_.pop_back();
      }
      stack_.push_back(value);
    }
    const size_t take = std::min(bytes.size(), kChunkBytes - chunk_.size());
    chunk_.insert(chunk_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(take));
    bytes = bytes.subspan(take);
  }
}

std::array<uint8_t, 32> Blake3::Digest() const {
  ChainingValue value = HashChunk(chunk_, chunks_, stack_.empty() ? kRoot : 0);
  for (size_t left = stack_.size(); left > 0; --left) {
    value = Parent(stack_[left - 1], value, left == 1 ? kRoot : 0);
  }
  std::array<uint8_t, 32> digest;
  std::memcpy(digest.data(), value.data(), digest.size());
  return digest;
}

}  // namespace dws::slime
