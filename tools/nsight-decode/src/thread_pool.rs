// SPDX-License-Identifier: GPL-2.0-only
//! Threads that decode slices and, in between, do jobs for the consumer of the slices.
//!
//! Slices are taken in order, and only as fast as the consumer keeps up: memory depends on the number of threads, not
//! on the length of the recording. A slice is handed on in parts, and may not be far ahead of the consumer either.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

/// A job that any thread may do. The job itself reports its result.
pub type Job = Box<dyn FnOnce() + Send>;

/// How many slices per thread may be ahead of the one that is being consumed.
const AHEAD: usize = 3;
/// How many parts of a slice may wait for the consumer.
const PARTS: usize = 8;

pub struct ThreadPool {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The next slice to be taken, and the number of slices.
    next: usize,
    n_slices: usize,
    consumed: usize,
    /// Parts of each slice that wait for the consumer.
    parts: BTreeMap<usize, usize>,
    /// Threads that decode, and threads that wait for work.
    busy: usize,
    idle: usize,
    stop: bool,
}

/// The work of a thread.
pub enum Work {
    Slice(usize),
    Job(Job),
}

impl ThreadPool {
    pub fn new(threads: usize) -> Self {
        Self { threads, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts the decoding of `n_slices` slices.
    pub fn begin(&self, n_slices: usize) {
        let jobs = std::mem::take(&mut self.state().jobs);
        *self.state() = State { n_slices, jobs, ..State::default() };
    }

    /// The next work for a thread; waits for it. None: there is no more work.
    pub fn work(&self) -> Option<Work> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            // Jobs come first: they hold memory, and further slices would add to it.
            if let Some(job) = state.jobs.pop_front() {
                return Some(Work::Job(job));
            }
            let most = state.n_slices.min(state.consumed + self.threads * AHEAD);
            if state.next < most && state.busy < self.threads {
                state.next += 1;
                state.busy += 1;
                return Some(Work::Slice(state.next - 1));
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
            state.idle -= 1;
        }
    }

    /// A thread has decoded its slice.
    pub fn decoded(&self) {
        self.state().busy -= 1;
        self.changed.notify_all();
    }

    /// Before a part of a slice is sent: waits until few others of it wait, and does jobs meanwhile. `waits`: called before
    /// this thread is lost for other slices. False: no part is wanted any more.
    pub fn send(&self, slice: usize, waits: impl Fn()) -> bool {
        let mut state = self.state();
        if state.parts.get(&slice).is_some_and(|&n| n >= PARTS) {
            state.busy -= 1;
            drop(state);
            self.changed.notify_all();
            waits();
            state = self.state();
            while !state.stop && state.parts.get(&slice).is_some_and(|&n| n >= PARTS) {
                if let Some(job) = state.jobs.pop_front() {
                    drop(state);
                    run(job);
                    state = self.state();
                } else {
                    state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
                }
            }
            state.busy += 1;
        }
        *state.parts.entry(slice).or_default() += 1;
        !state.stop
    }

    /// Whether the consumer waits in vain for a slice, because all threads wait with parts of others.
    pub fn lacks_thread(&self, slice: usize) -> bool {
        let state = self.state();
        state.next <= slice && state.busy < self.threads && state.idle == 0
    }

    /// The consumer has taken a part of a slice.
    pub fn taken(&self, slice: usize) {
        let mut state = self.state();
        match state.parts.get_mut(&slice) {
            Some(n @ 2..) => *n -= 1,
            _ => _ = state.parts.remove(&slice),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The consumer has begun a slice.
    pub fn consumed(&self) {
        self.state().consumed += 1;
        self.changed.notify_all();
    }

    /// Lets the threads end.
    pub fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// Hands out a job. If too many wait, this thread does one.
    pub fn give(&self, job: Job) {
        let mut state = self.state();
        state.jobs.push_back(job);
        let own = if state.jobs.len() > self.threads { state.jobs.pop_front() } else { None };
        drop(state);
        self.changed.notify_one();
        own.into_iter().for_each(run);
    }

    fn job(&self) -> Option<Job> {
        self.state().jobs.pop_front()
    }

    /// Does all jobs that are left, after the threads have ended.
    pub fn finish(&self) {
        let left = self.state().jobs.len();
        let all = || {
            while let Some(job) = self.job() {
                run(job);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(left) {
                // If no thread can be started, this one does the work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, all);
            }
            all();
        });
    }
}

/// If a job panics, the code that misses its result reports it; the thread continues with other jobs.
pub fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    #[test]
    fn all_chores_are_done_whoever_does_them() {
        let pool = ThreadPool::new(3);
        let done = Arc::new(AtomicUsize::new(0));
        let job = |done: &Arc<AtomicUsize>| -> Job {
            let done = done.clone();
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        for _ in 0..5 {
            pool.give(job(&done));
        }
        assert_eq!(done.load(Ordering::Relaxed), 2, "three may wait");
        pool.give(Box::new(|| panic!("on purpose")));
        pool.finish();
        assert_eq!(done.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_slice_waits_for_the_consumer_and_leaves_its_place_to_others() {
        let pool = ThreadPool::new(1);
        pool.begin(2);
        assert!(matches!(pool.work(), Some(Work::Slice(0))));
        let waits = AtomicUsize::new(0);
        let send = || pool.send(0, || _ = waits.fetch_add(1, Ordering::Relaxed));
        assert!((0..PARTS).all(|_| send()));
        assert!(!pool.lacks_thread(1), "its thread is still there");
        std::thread::scope(|scope| {
            let sent = scope.spawn(send);
            while waits.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert!(pool.lacks_thread(1) && !pool.lacks_thread(0));
            assert!(matches!(pool.work(), Some(Work::Slice(1))));
            pool.taken(0);
            assert!(sent.join().unwrap());
        });
        pool.stop();
        assert!(!send());
    }

    #[test]
    fn slices_are_taken_in_order_and_not_far_ahead() {
        let pool = ThreadPool::new(1);
        pool.begin(5);
        let next = || match pool.work() {
            Some(Work::Slice(n)) => n,
            _ => panic!("no slice"),
        };
        let next = || {
            let n = next();
            pool.decoded();
            n
        };
        assert_eq!([next(), next(), next()], [0, 1, 2]);
        pool.consumed();
        assert_eq!(next(), 3);
        pool.stop();
        assert!(pool.work().is_none());
    }
}
