#include "receiver_daemon/group/group_orders.h"

#include <iterator>
#include <utility>

namespace dws {

template <typename Order>
void GroupOrders::Drop() {
  std::erase_if(orders_, [](const GroupOrder& one) { return std::holds_alternative<Order>(one); });
}

void GroupOrders::Add(const StageTarget& target) {
  MutexLock lock(mutex_);
  orders_.push_back(StageOrder{.attempt = ++attempt_, .what = target});
}

void GroupOrders::Add(GroupOrder order) {
  MutexLock lock(mutex_);
  if (std::holds_alternative<DropStaged>(order)) {
    ++attempt_;  // staging in progress is void
    Drop<StageOrder>();
    Drop<DropStaged>();
  }
  // Only the last release counts.
  if (std::holds_alternative<ReleaseEngine>(order)) Drop<ReleaseEngine>();
  orders_.push_back(std::move(order));
}

void GroupOrders::DropReleases() {
  MutexLock lock(mutex_);
  Drop<ReleaseEngine>();
}

std::vector<GroupOrder> GroupOrders::TakeAll() {
  MutexLock lock(mutex_);
  std::vector<GroupOrder> orders(std::make_move_iterator(orders_.begin()),
                                 std::make_move_iterator(orders_.end()));
  orders_.clear();
  return orders;
}

bool GroupOrders::empty() const {
  MutexLock lock(mutex_);
  return orders_.empty();
}

bool GroupOrders::Wants(const StageOrder& order) const {
  MutexLock lock(mutex_);
  return order.attempt == attempt_;
}

}  // namespace dws
