// A mutex, a scoped lock and a condition variable with Clang's thread-safety annotations, so that a field marked
// ORBITKV_GUARDED_BY(mutex) is a compile error when it is touched without the lock (tidy and sanitizer builds use
// Clang). Threads: that is the point. Blocks: Lock and Wait do. At most two locks are held at once, in an order that is
// written beside the fields.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define ORBITKV_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define ORBITKV_THREAD_ANNOTATION(x)
#endif
#define ORBITKV_CAPABILITY(x) ORBITKV_THREAD_ANNOTATION(capability(x))
#define ORBITKV_SCOPED_CAPABILITY ORBITKV_THREAD_ANNOTATION(scoped_lockable)
#define ORBITKV_GUARDED_BY(x) ORBITKV_THREAD_ANNOTATION(guarded_by(x))
#define ORBITKV_REQUIRES(...) ORBITKV_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define ORBITKV_EXCLUDES(...) ORBITKV_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ORBITKV_ACQUIRE(...) ORBITKV_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ORBITKV_RELEASE(...) ORBITKV_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace orbitkv {

class ORBITKV_CAPABILITY("mutex") Mutex {
 public:
  void Lock() ORBITKV_ACQUIRE() { mutex_.lock(); }
  void Unlock() ORBITKV_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ORBITKV_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ORBITKV_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ORBITKV_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Both return after a notification, at the deadline, or spuriously: callers loop on their condition.
  void WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) ORBITKV_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait_until(lock, deadline);
    lock.release();
  }
  void Wait(Mutex& mutex) ORBITKV_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace orbitkv
