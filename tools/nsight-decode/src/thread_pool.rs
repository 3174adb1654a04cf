// SPDX-License-Identifier: GPL-2.0-only
//! Threads that decode slices and, in between, do jobs for the consumer of the slices.
//!
//! Slices are taken in order, and only as fast as the consumer keeps up: memory depends on the number of threads, not
//! on the length of the recording.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

/// A job that any thread may do. The job itself reports its result.
pub type Job = Box<dyn FnOnce() + Send>;

/// How many slices per thread may be ahead of the one that is being consumed.
const AHEAD: usize = 3;

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
            if state.next < state.n_slices.min(state.consumed + self.threads * AHEAD) {
                state.next += 1;
                return Some(Work::Slice(state.next - 1));
            }
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// A slice was consumed.
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
    fn slices_are_taken_in_order_and_not_far_ahead() {
        let pool = ThreadPool::new(1);
        pool.begin(5);
        let next = || match pool.work() {
            Some(Work::Slice(n)) => n,
            _ => panic!("no slice"),
        };
        assert_eq!([next(), next(), next()], [0, 1, 2]);
        pool.consumed();
        assert_eq!(next(), 3);
        pool.stop();
        assert!(pool.work().is_none());
    }
}
