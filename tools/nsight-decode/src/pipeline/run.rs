// SPDX-License-Identifier: GPL-2.0-only
//! A thread pool decodes the slices of all CPUs in the order in which they begin.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc;

use super::merge::{Counts, Merger};
use super::options::Options;
use super::plan::Plan;
use super::progress::Progress;
use crate::code::Code;
use crate::edges::Sink;
use crate::error::{Error, Result};
use crate::perfdata::Recording;
use crate::pt::walk::{Output, Walker};
use crate::thread_pool::{self, ThreadPool, Work};

/// Stack of a decoding thread. If a damaged trace leads libipt through jumps, it recurses for each of up to 65535
/// instructions of a block. The unused part costs only address space.
const STACK: usize = 128 << 20;

/// Decodes a recording into `sink`.
pub fn run(
    recording: &Recording,
    code: &Code,
    options: &Options,
    pool: &ThreadPool,
    sink: &mut dyn Sink,
) -> Result<Counts> {
    let plan = Plan::new(recording, code, options);
    if plan.never_entered == plan.tracks.len() {
        return Err(Error::no_pt(
            &recording.file.path,
            "its Intel PT data have no PSB packet, where decoding could begin",
            "record again, longer, with a smaller psb_period or a larger buffer: perf record -m ,64M",
        ));
    }
    pool.begin(plan.slices.len());
    let (send, receive) = mpsc::channel::<(usize, Result<Output>)>();
    std::thread::scope(|scope| {
        // Whatever the result is, waiting threads must end too.
        let _release = Release(pool);
        for _ in 0..pool.threads().clamp(1, plan.slices.len().max(1)) {
            let (plan, send) = (&plan, send.clone());
            let worker = std::thread::Builder::new().stack_size(STACK);
            let decode = move || decode(recording, code, plan, options.bare, pool, &send);
            worker.spawn_scoped(scope, decode).map_err(|e| Error::memory(format_args!("no thread: {e}")))?;
        }
        drop(send);
        collect(recording, code, &plan, options, sink, &receive, pool)
    })
}

/// The work of each thread.
fn decode(
    recording: &Recording,
    code: &Code,
    plan: &Plan,
    bare: bool,
    pool: &ThreadPool,
    send: &mpsc::Sender<(usize, Result<Output>)>,
) {
    let mut walker = None;
    while let Some(work) = pool.work() {
        let number = match work {
            Work::Job(job) => {
                thread_pool::run(job);
                continue;
            }
            Work::Slice(number) => number,
        };
        let place = &plan.slices[number];
        let track = &plan.tracks[place.track];
        let slice = || {
            let mut ready = match walker.take() {
                Some(ready) => ready,
                None => Walker::new(recording, code, bare)?,
            };
            let output = ready.slice(&track.runs[place.run], &track.track, &place.slice);
            walker = Some(ready);
            output
        };
        // A thread that ends without a report would leave the others waiting.
        let result = catch_unwind(AssertUnwindSafe(slice))
            .unwrap_or_else(|_| Err(Error::bug(format_args!("slice {number} could not be decoded"))));
        if send.send((number, result)).is_err() {
            return;
        }
    }
}

struct Release<'a>(&'a ThreadPool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn collect(
    recording: &Recording,
    code: &Code,
    plan: &Plan,
    options: &Options,
    sink: &mut dyn Sink,
    receive: &mpsc::Receiver<(usize, Result<Output>)>,
    pool: &ThreadPool,
) -> Result<Counts> {
    let mut merger = Merger::new(recording, code, plan, options, sink)?;
    let mut progress = Progress::new(options.progress, plan.bytes());
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
        pool.consumed();
    }
    progress.finish();
    merger.finish()
}
