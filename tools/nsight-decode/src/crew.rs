// SPDX-License-Identifier: GPL-2.0-only
//! Threads that decode slices, and in between do what the consumer of slices hands out.
//!
//! Slices are taken in order, and no more of them than the consumer keeps up with: memory depends on
//! how many threads there are, and not on how long was recorded.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Something that any thread may do. Who handed it out learns of its result by itself.
pub type Chore = Box<dyn FnOnce() + Send>;

/// How many slices may be ahead of the one that is consumed, for each thread.
const AHEAD: usize = 3;

pub struct Crew {
    jobs: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    chores: VecDeque<Chore>,
    /// The slice that is to be taken next, and how many there are.
    next: usize,
    n_slices: usize,
    consumed: usize,
    stop: bool,
}

/// What a thread is to do.
pub enum Work {
    Slice(usize),
    Chore(Chore),
}

impl Crew {
    pub fn new(jobs: usize) -> Self {
        Self { jobs, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn jobs(&self) -> usize {
        self.jobs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// So many slices are to be decoded now.
    pub fn begin(&self, n_slices: usize) {
        let chores = std::mem::take(&mut self.state().chores);
        *self.state() = State { n_slices, chores, ..State::default() };
    }

    /// What a thread is to do next; waits for it. None: nothing any more.
    pub fn work(&self) -> Option<Work> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            // They hold memory that slices would add to.
            if let Some(chore) = state.chores.pop_front() {
                return Some(Work::Chore(chore));
            }
            if state.next < state.n_slices.min(state.consumed + self.jobs * AHEAD) {
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

    /// Hands out a chore. Where too many wait, one is done here.
    pub fn give(&self, chore: Chore) {
        let mut state = self.state();
        state.chores.push_back(chore);
        let own = if state.chores.len() > self.jobs { state.chores.pop_front() } else { None };
        drop(state);
        self.changed.notify_one();
        own.into_iter().for_each(run);
    }

    fn chore(&self) -> Option<Chore> {
        self.state().chores.pop_front()
    }

    /// Does all chores that are left. No thread is at work any more.
    pub fn finish(&self) {
        let left = self.state().chores.len();
        let all = || {
            while let Some(chore) = self.chore() {
                run(chore);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.jobs.min(left) {
                // Without a thread, this one does it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, all);
            }
            all();
        });
    }
}

/// Whoever misses the result of one that panicked says so; the thread has others to do.
pub fn run(chore: Chore) {
    let _ = catch_unwind(AssertUnwindSafe(chore));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    #[test]
    fn all_chores_are_done_whoever_does_them() {
        let crew = Crew::new(3);
        let done = Arc::new(AtomicUsize::new(0));
        let chore = |done: &Arc<AtomicUsize>| -> Chore {
            let done = done.clone();
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        for _ in 0..5 {
            crew.give(chore(&done));
        }
        assert_eq!(done.load(Ordering::Relaxed), 2, "three may wait");
        crew.give(Box::new(|| panic!("on purpose")));
        crew.finish();
        assert_eq!(done.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn slices_are_taken_in_order_and_not_far_ahead() {
        let crew = Crew::new(1);
        crew.begin(5);
        let next = || match crew.work() {
            Some(Work::Slice(n)) => n,
            _ => panic!("no slice"),
        };
        assert_eq!([next(), next(), next()], [0, 1, 2]);
        crew.consumed();
        assert_eq!(next(), 3);
        crew.stop();
        assert!(crew.work().is_none());
    }
}
