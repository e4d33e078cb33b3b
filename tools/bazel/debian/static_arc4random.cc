// arc4random for --config=static. libevent's archive calls glibc's, the only symbol that would need
// glibc 2.36 instead of 2.35; this gives the same guarantee with getrandom(2).

#include <sys/random.h>

#include <cstddef>
#include <cstdint>

extern "C" {

void arc4random_buf(void* buffer, std::size_t size) noexcept {
  auto* next = static_cast<unsigned char*>(buffer);
  while (size > 0) {
    const ssize_t got = getrandom(next, size, 0);
    if (got < 0) continue;  // EINTR; with these arguments there is no other error
    next += got;
    size -= static_cast<std::size_t>(got);
  }
}

std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  arc4random_buf(&value, sizeof value);
  return value;
}

}  // extern "C"
