// A few parked threads that help a caller through a list of independent items.
#pragma once

#include <cstdint>

// How many threads share a list of items, and whose they are.
struct Threads {
  int count;  // at most so many, the caller's among them
  int team;   // the size of the caller's OpenMP team, or 0 for threads of our own
};

// GOMP_parallel of the OpenMP runtime that torch has brought into this process. Its threads spin for a millisecond
// after every operation of torch, on the very cores that ours would need: attention between two linear layers then
// gained nothing from a second thread. Borrowing the team that is spinning anyway makes it 1.6 times as fast, and
// starting it takes 3 us.
typedef void (*TeamStart)(void (*work)(void*), void* context, unsigned threads, unsigned flags);
void borrow_team(TeamStart start);

// Calls work(context, item) once for every item in [0, items) and returns when all are done. Items are taken in order,
// by whoever is free. Any number of callers may be inside at once; each gets helpers of its own. `work` must not throw.
void parallel_for(Threads threads, int64_t items, void (*work)(void* context, int64_t item), void* context);
