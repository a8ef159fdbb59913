#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

struct Job {
  int64_t items;
  void (*work)(void*, int64_t);
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<int> places{0};  // for threads of a borrowed team
  int helpers = 0;             // threads inside, guarded by the pool's mutex

  void help() {
    for (int64_t item = next++; item < items; item = next++) work(context, item);
  }
};

// A spinning helper answers within a microsecond and a parked one within tens, but one that spins for long takes its
// core from torch's own threads, which do the work between our calls.
constexpr auto kSpin = std::chrono::microseconds(50);

class Pool {
 public:
  void run(Job& job, int helpers) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_.insert(wanted_.end(), static_cast<size_t>(helpers), &job);
      waiting_ = static_cast<int>(wanted_.size());
      hire();
    }
    for (int i = 0; i < helpers; i++) wake_.notify_one();
    job.help();
    std::unique_lock<std::mutex> lock(mutex_);
    // Helpers that have not come yet are not needed any more
    wanted_.erase(std::remove(wanted_.begin(), wanted_.end(), &job), wanted_.end());
    waiting_ = static_cast<int>(wanted_.size());
    done_.wait(lock, [&] { return job.helpers == 0; });
  }

 private:
  // As many threads as are asked for at once by all callers together. Fewer, when the system gives no more, is slower
  // and nothing else: the caller does what nobody comes for.
  void hire() {
    const int needed = busy_ + static_cast<int>(wanted_.size());
    try {
      for (; hired_ < needed; hired_++) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    for (;;) {
      spin();
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return !wanted_.empty(); });
      Job* job = wanted_.back();
      wanted_.pop_back();
      waiting_ = static_cast<int>(wanted_.size());
      job->helpers++;
      busy_++;
      lock.unlock();
      job->help();
      lock.lock();
      busy_--;
      // The last one out lets the caller go, and the job, on the caller's stack, with it
      if (--job->helpers == 0) done_.notify_all();
    }
  }

  void spin() const {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (waiting_.load(std::memory_order_relaxed) == 0 && std::chrono::steady_clock::now() < until) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Job*> wanted_;     // one entry for each helper still to come
  std::atomic<int> waiting_{0};  // its size, read without the lock
  int hired_ = 0;
  int busy_ = 0;
};

// Never destroyed: parked threads wait in it until the process ends. A forked child has none of its parent's threads,
// and perhaps a locked mutex, so it gets a pool of its own.
Pool& pool() {
  static std::atomic<Pool*> shared{nullptr};
  static std::atomic<pid_t> owner{0};
  static std::atomic_flag creating = ATOMIC_FLAG_INIT;
  const pid_t self = getpid();
  if (owner.load(std::memory_order_acquire) != self) {
    while (creating.test_and_set(std::memory_order_acquire)) {
    }
    if (owner.load(std::memory_order_relaxed) != self) {
      shared.store(new Pool, std::memory_order_relaxed);
      owner.store(self, std::memory_order_release);
    }
    creating.clear(std::memory_order_release);
  }
  return *shared.load(std::memory_order_relaxed);
}

struct Team {
  TeamStart start;
  pid_t owner;
};

std::atomic<Team*> borrowed{nullptr};

// In a forked child the runtime waits for threads that only its parent has.
const Team* team_here() {
  const Team* team = borrowed.load(std::memory_order_acquire);
  return team && team->owner == getpid() ? team : nullptr;
}

// The team starts whole, whatever is asked for: a runtime that is asked for fewer threads ends the others, and torch's
// next operation has to make them anew.
void help_in_team(void* context) {
  Job& job = *static_cast<Job*>(context);
  if (job.places-- > 0) job.help();
}

}  // namespace

void borrow_team(TeamStart start) { borrowed.store(new Team{start, getpid()}, std::memory_order_release); }

void parallel_for(Threads threads, int64_t items, void (*work)(void*, int64_t), void* context) {
  const int count = static_cast<int>(std::min<int64_t>(threads.count, items));
  Job job{items, work, context};
  const Team* team = count > 1 && threads.team >= count ? team_here() : nullptr;
  if (team) {
    job.places = count;
    team->start(help_in_team, &job, static_cast<unsigned>(threads.team), 0);
  } else if (count > 1) {
    pool().run(job, count - 1);
  } else {
    job.help();
  }
}
