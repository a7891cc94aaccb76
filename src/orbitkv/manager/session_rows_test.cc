#include "orbitkv/manager/session_rows.h"

#include <atomic>
#include <gtest/gtest.h>
#include <set>

#include "orbitkv/base/mutex.h"
#include "orbitkv/manager/liveness_watch.h"
#include "orbitkv/os/byte_lock.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::manager {
namespace {

TEST(SessionRows, ARowIsLockedForAsLongAsItsDescriptorIsOpen) {
  const os::UniqueFd file = os::CreateMemfd("liveness", 4096).value();
  SessionRows rows(file.get(), 3);
  auto first = rows.Take(true).value();
  auto second = rows.Take(true).value();
  const auto third = rows.Take(false).value();
  EXPECT_EQ((std::set{first.row, second.row, third.row}).size(), 3U);
  EXPECT_FALSE(third.liveness.valid()) << "nobody watches it";
  EXPECT_TRUE(rows.Locked(first.row));
  EXPECT_FALSE(rows.Locked(third.row));
  EXPECT_EQ(rows.Take(true).error().code, Code::kBusy);
  // Given back while its process lives on: nobody else's yet.
  rows.Give(first.row);
  EXPECT_EQ(rows.Take(true).error().code, Code::kBusy);
  first.liveness.reset();
  EXPECT_FALSE(rows.Locked(first.row));
  EXPECT_EQ(rows.Take(true).value().row, first.row);
}

TEST(SessionRows, RowsOfEarlierSessionsAreKept) {
  const os::UniqueFd file = os::CreateMemfd("liveness", 4096).value();
  SessionRows rows(file.get(), 2);
  rows.Keep(0);
  EXPECT_EQ(rows.Take(true).value().row, 1U);
  EXPECT_FALSE(rows.Take(true));
  rows.Give(0);
  EXPECT_EQ(rows.Take(true).value().row, 0U);
}

TEST(LivenessWatch, ReportsEachRowOnceWhenItsLockIsFree) {
  const os::UniqueFd file = os::CreateMemfd("liveness", 4096).value();
  SessionRows rows(file.get(), 4);
  auto one = rows.Take(true).value();
  auto other = rows.Take(true).value();
  auto forgotten = rows.Take(true).value();
  Mutex mutex;
  CondVar changed;
  std::multiset<std::uint32_t> gone;
  LivenessWatch watch({.rows = {one.row, other.row, forgotten.row},
                       .locked = [&](std::uint32_t row) { return rows.Locked(row); },
                       .gone =
                           [&](std::uint32_t row) {
                             const MutexLock lock(mutex);
                             gone.insert(row);
                             changed.NotifyAll();
                           },
                       .poll_ns = 1'000'000});
  ASSERT_TRUE(watch.Start());
  ASSERT_TRUE(watch.Start());
  watch.Forget(forgotten.row);
  forgotten.liveness.reset();
  other.liveness.reset();
  {
    const MutexLock lock(mutex);
    while (gone.empty()) changed.Wait(mutex);
    EXPECT_EQ(gone, (std::multiset{other.row}));
  }
  one.liveness.reset();
  {
    const MutexLock lock(mutex);
    while (gone.size() < 2) changed.Wait(mutex);
  }
  watch.Stop();
  watch.Stop();
  EXPECT_EQ(gone, (std::multiset{one.row, other.row}));
}

}  // namespace
}  // namespace orbitkv::manager
