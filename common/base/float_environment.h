// The processor's floating-point mode while results are computed that must have the same bits
// everywhere: the host program or one of its libraries may have set another rounding, or may flush
// subnormals to zero (-ffast-math does).
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace dws {

// While this object lives, its thread rounds to nearest even, keeps subnormals and takes no traps.
// Its destructor restores the old mode. The arithmetic must be in functions that the compiler
// cannot inline at the place of this object: otherwise it may move the arithmetic out of the
// object's life.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned int before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace dws
