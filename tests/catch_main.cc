// The main of every C++ test (Catch2 2.13): Bazel's conventions mapped onto Catch2's.

#include <cstdlib>

#define CATCH_CONFIG_RUNNER
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // the sanitizer reports faults
#endif
#include <catch2/catch.hpp>

int main(int argc, char** argv) {
  Catch::Session session;
  // A filter that matches nothing, or a binary whose tests were not linked, must not pass.
  session.configData().warnings = Catch::WarnAbout::NoTests;
  // bazel test --test_filter='a receiver that NACKs*'
  const char* filter = std::getenv("TESTBRIDGE_TEST_ONLY");
  if (filter != nullptr && *filter != '\0') session.configData().testsOrTags.emplace_back(filter);

  const int usage_error = session.applyCommandLine(argc, argv);
  if (usage_error != 0) return usage_error;
  return session.run();
}
