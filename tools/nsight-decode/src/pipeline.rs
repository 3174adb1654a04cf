// SPDX-License-Identifier: GPL-2.0-only
//! A recording to one sequence of edges: slices in parallel, joined in order, merged by time.
//!
//! Slices of all CPUs are decoded in the order in which they begin. No more of them are under way
//! or waiting than `jobs` can work at, so that memory depends on these and on how many CPUs there
//! are, and not on how long was recorded.

mod lanes;
mod merge;
mod plan;
mod progress;

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{mpsc, Condvar, Mutex};

use crate::code::Code;
use crate::edges::Sink;
use crate::error::{Error, Result};
use crate::perfdata::Recording;
use crate::pt::walk::{Output, Walker};
use crate::windows::Windows;

pub use merge::Counts;
pub use plan::Plan;

pub struct Options {
    pub jobs: usize,
    pub windows: Windows,
    /// Bytes of PT in a slice.
    pub slice: usize,
    /// Edges before the windows are given too, so that calls around their begin are known.
    pub with_context: bool,
    pub progress: bool,
    /// Only what libipt needs: no edges. For benchmarks.
    pub bare: bool,
}

pub const SLICE: usize = 256 << 10;

/// How many slices may be ahead of the one that is merged, for each thread.
const AHEAD: usize = 3;

/// Stack of a thread that decodes. libipt recurses for each of up to 65535 instructions of a block, if
/// a damaged trace leads it through jumps; what is not used costs nothing.
const STACK: usize = 128 << 20;

/// Decodes a recording into `sink`.
pub fn run(recording: &Recording, code: &Code, options: &Options, sink: &mut dyn Sink) -> Result<Counts> {
    let plan = Plan::new(recording, code, options);
    let jobs = options.jobs.clamp(1, plan.slices.len().max(1));
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    // How many slices are merged; wakes those who wait to be allowed ahead.
    let merged = (Mutex::new(0usize), Condvar::new());
    let (send, receive) = mpsc::channel::<(usize, Result<Output>)>();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let send = send.clone();
            let (plan, next, stop, merged) = (&plan, &next, &stop, &merged);
            let worker = std::thread::Builder::new().stack_size(STACK);
            let spawned = worker.spawn_scoped(scope, move || {
                let mut walker = match Walker::new(recording, code, options.bare) {
                    Ok(walker) => walker,
                    Err(e) => return drop(send.send((next.fetch_add(1, Ordering::Relaxed), Err(e)))),
                };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(place) = plan.slices.get(number) else { return };
                    let mut done = merged.0.lock().unwrap_or_else(|e| e.into_inner());
                    while number >= *done + jobs * AHEAD && !stop.load(Ordering::Relaxed) {
                        done = merged.1.wait(done).unwrap_or_else(|e| e.into_inner());
                    }
                    drop(done);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let lane = &plan.lanes[place.lane];
                    let slice = || walker.slice(&lane.runs[place.run], &lane.lane, &place.slice);
                    // A thread that ends without a word would leave the others waiting.
                    let result = catch_unwind(AssertUnwindSafe(slice)).unwrap_or_else(|_| {
                        Err(Error::bug(format_args!("slice {number} could not be decoded")))
                    });
                    if send.send((number, result)).is_err() {
                        return;
                    }
                }
            });
            if let Err(e) = spawned {
                let _release = Release { stop, merged };
                return Err(Error::memory(format_args!("no thread: {e}")));
            }
        }
        drop(send);
        let _release = Release { stop: &stop, merged: &merged };
        collect(recording, code, &plan, options, sink, &receive, &merged)
    })
}

/// Lets waiting threads end, however their consumer does.
struct Release<'a> {
    stop: &'a AtomicBool,
    merged: &'a (Mutex<usize>, Condvar),
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let _done = self.merged.0.lock().unwrap_or_else(|e| e.into_inner());
        self.stop.store(true, Ordering::Relaxed);
        self.merged.1.notify_all();
    }
}

fn collect(
    recording: &Recording,
    code: &Code,
    plan: &Plan,
    options: &Options,
    sink: &mut dyn Sink,
    receive: &mpsc::Receiver<(usize, Result<Output>)>,
    merged: &(Mutex<usize>, Condvar),
) -> Result<Counts> {
    let mut merger = merge::Merger::new(recording, code, plan, options, sink)?;
    let mut progress = progress::Progress::new(options.progress, plan.bytes());
    let mut waiting = BTreeMap::new();
    for number in 0..plan.slices.len() {
        while !waiting.contains_key(&number) {
            let Ok((n, result)) = receive.recv() else {
                return Err(Error::memory("a thread ended without a result"));
            };
            waiting.insert(n, result);
        }
        let output = waiting.remove(&number).expect("just looked at")?;
        merger.take(number, output)?;
        progress.done(plan.slices[number].size());
        *merged.0.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        merged.1.notify_all();
    }
    progress.finish();
    merger.finish()
}
