// One connection to one Manager life: its control session, its publish session once something is saved, and its pool.
// A LifePin keeps all of that in place while a thread uses it.
// Owns: Life owns sessions and mapping; the Link owns the Life and destroys it when the last pin is gone.
// Threads: a pin belongs to one thread at a time; what it points to is safe from any. Blocks: no.
// Invariant: lost() never turns false again; once it is true nothing new is asked of this Manager, while a copy that
//            runs may finish from the mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/client/pool_map.h"

namespace orbitkv::client {

class Life {
 public:
  explicit Life(std::uint64_t number) : number_(number) {}

  // Both by the Link, before anybody else sees the Life.
  void SetControl(std::unique_ptr<channel::ClientSession> control) { control_ = std::move(control); }
  void SetPool(std::unique_ptr<PoolMap> pool) { pool_ = std::move(pool); }
  // By the Link, when nobody has a pin any more.
  std::unique_ptr<PoolMap> TakePool() { return std::move(pool_); }

  std::uint64_t number() const { return number_; }
  Incarnation incarnation() const { return control_->incarnation(); }
  channel::ClientSession& control() const { return *control_; }
  PoolMap* pool() const { return pool_.get(); }  // null for a scheduler, which moves no bytes

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Ends every wait for this Manager.
  void MarkLost() ORBITKV_EXCLUDES(mutex_) {
    lost_.store(true, std::memory_order_release);
    control_->Shutdown();
    const MutexLock lock(mutex_);
    if (publish_) publish_->Shutdown();
  }

  // The publish session; null before the publisher has opened it. Set once, by the publisher.
  channel::ClientSession* publish() const ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return publish_.get();
  }
  channel::ClientSession* SetPublish(std::unique_ptr<channel::ClientSession> session) ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    publish_ = std::move(session);
    if (lost()) publish_->Shutdown();
    return publish_.get();
  }

 private:
  const std::uint64_t number_;
  std::unique_ptr<channel::ClientSession> control_;
  std::unique_ptr<PoolMap> pool_;
  mutable Mutex mutex_;
  std::unique_ptr<channel::ClientSession> publish_ ORBITKV_GUARDED_BY(mutex_);
  std::atomic<bool> lost_{false};
};

class Link;

class LifePin {
 public:
  LifePin() = default;
  LifePin(LifePin&& other) noexcept
      : link_(std::exchange(other.link_, nullptr)), life_(std::exchange(other.life_, nullptr)) {}
  LifePin& operator=(LifePin&& other) noexcept {
    if (this != &other) {
      Reset();
      link_ = std::exchange(other.link_, nullptr);
      life_ = std::exchange(other.life_, nullptr);
    }
    return *this;
  }
  LifePin(const LifePin&) = delete;
  LifePin& operator=(const LifePin&) = delete;
  ~LifePin() { Reset(); }

  explicit operator bool() const { return life_ != nullptr; }
  Life* operator->() const { return life_; }
  Life& operator*() const { return *life_; }
  void Reset();
  // For a device that may still touch the pool and cannot be drained: the mapping stays as long as the process.
  void KeepForEver();

 private:
  friend class Link;
  LifePin(Link* link, Life* life) : link_(link), life_(life) {}
  Link* link_ = nullptr;
  Life* life_ = nullptr;
};

}  // namespace orbitkv::client
