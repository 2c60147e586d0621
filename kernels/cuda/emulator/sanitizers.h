#pragma once

// Annotations for ThreadSanitizer and AddressSanitizer. They are functions, which do nothing in a
// build without the sanitizer.
//
// ThreadSanitizer sees each CUDA thread as a fiber. Only the operations that order memory on a GPU
// order memory here. A switch from one fiber to the next does not.

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QUIRE_EMULATOR_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define QUIRE_EMULATOR_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define QUIRE_EMULATOR_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_EMULATOR_ASAN 1
#endif

#if defined(QUIRE_EMULATOR_TSAN)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif
#if defined(QUIRE_EMULATOR_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* bytes);
void __asan_poison_memory_region(const volatile void* address, size_t bytes);
void __asan_unpoison_memory_region(const volatile void* address, size_t bytes);
int __asan_address_is_poisoned(const volatile void* address);
}
#endif

namespace quire::kernels::cuda::emulator {

#if defined(QUIRE_EMULATOR_TSAN)
inline constexpr bool kThreadSanitizer = true;
// Accesses before TsanRelease(address) happen before accesses after a later TsanAcquire(address).
inline void TsanAcquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }
inline void TsanRelease(const void* address) { __tsan_release(const_cast<void*>(address)); }
// Report an access by the current thread, or by an asynchronous hardware unit on behalf of this
// thread.
inline void TsanRead(const void* address, size_t bytes) {
  __tsan_read_range(const_cast<void*>(address), bytes);
}
inline void TsanWrite(void* address, size_t bytes) { __tsan_write_range(address, bytes); }
inline void TsanIgnoreBegin() { __tsan_ignore_thread_begin(); }
inline void TsanIgnoreEnd() { __tsan_ignore_thread_end(); }
#else
inline constexpr bool kThreadSanitizer = false;
inline void TsanAcquire(const void*) {}
inline void TsanRelease(const void*) {}
inline void TsanRead(const void*, size_t) {}
inline void TsanWrite(void*, size_t) {}
inline void TsanIgnoreBegin() {}
inline void TsanIgnoreEnd() {}
#endif

#if defined(QUIRE_EMULATOR_ASAN)
inline constexpr bool kAddressSanitizer = true;
// AddressSanitizer reports every access to poisoned memory.
inline void AsanPoison(const void* address, size_t bytes) {
  __asan_poison_memory_region(address, bytes);
}
inline void AsanUnpoison(const void* address, size_t bytes) {
  __asan_unpoison_memory_region(address, bytes);
}
inline bool AsanIsPoisoned(const void* address) { return __asan_address_is_poisoned(address) != 0; }
#else
inline constexpr bool kAddressSanitizer = false;
inline void AsanPoison(const void*, size_t) {}
inline void AsanUnpoison(const void*, size_t) {}
inline bool AsanIsPoisoned(const void*) { return false; }
#endif

// While an EmulatorsOwn object exists, ThreadSanitizer ignores the accesses of this thread. These
// accesses are the emulator's own and cannot be races of the kernel.
class EmulatorsOwn {
 public:
  EmulatorsOwn() {
    TsanIgnoreBegin();
    ++depth_;
  }
  ~EmulatorsOwn() {
    --depth_;
    TsanIgnoreEnd();
  }
  EmulatorsOwn(const EmulatorsOwn&) = delete;
  EmulatorsOwn& operator=(const EmulatorsOwn&) = delete;

  // Leave() sets the number of EmulatorsOwn objects to 0 and returns the old number. Return()
  // restores it. Code between the two calls counts only its own objects. This code is another
  // fiber, or the scope of a KernelsOwn object.
  static int Leave() {
    const int depth = depth_;
    depth_ = 0;
    return depth;
  }
  static void Return(int depth) { depth_ = depth; }

 private:
  static inline constinit thread_local int depth_ = 0;
};

// The opposite of EmulatorsOwn, for use while EmulatorsOwn objects exist. While a KernelsOwn object
// exists, ThreadSanitizer sees the accesses of this thread again. They count as accesses of the
// kernel.
class KernelsOwn {
 public:
  KernelsOwn() {
    TsanIgnoreBegin();
    depth_ = EmulatorsOwn::Leave();
    for (int i = 0; i < depth_ + 1; ++i) TsanIgnoreEnd();
  }
  ~KernelsOwn() {
    for (int i = 0; i < depth_ + 1; ++i) TsanIgnoreBegin();
    EmulatorsOwn::Return(depth_);
    TsanIgnoreEnd();
  }
  KernelsOwn(const KernelsOwn&) = delete;
  KernelsOwn& operator=(const KernelsOwn&) = delete;

 private:
  int depth_;
};

}  // namespace quire::kernels::cuda::emulator
