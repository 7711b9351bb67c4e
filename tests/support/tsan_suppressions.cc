// The reference count of an exception_ptr lives in libstdc++, which is not instrumented: freeing an
// exception that another thread has looked at before is reported, though the count orders the two.

#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions();   // NOLINT: the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {  // NOLINT: the sanitizer's name
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif
