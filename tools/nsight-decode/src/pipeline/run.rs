// SPDX-License-Identifier: GPL-2.0-only
//! A thread pool decodes the slices of all CPUs in the order in which they begin.

use std::collections::{BTreeMap, VecDeque};
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
use crate::pt::item::Item;
use crate::pt::walk::{Output, Walker, ROOM};
use crate::spare::Spare;
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
    let spare = Spare::new(2 * pool.threads() + 2, ROOM);
    let (send, receive) = mpsc::channel::<Message>();
    std::thread::scope(|scope| {
        // Whatever the result is, waiting threads must end too.
        let _release = Release(pool);
        let start = || {
            let (plan, send, spare) = (&plan, send.clone(), &spare);
            let worker = std::thread::Builder::new().stack_size(STACK);
            let decode = move || decode(recording, code, plan, options.bare, pool, spare, &send);
            let worker = worker.spawn_scoped(scope, decode);
            worker.map(drop).map_err(|e| Error::memory(format_args!("no thread: {e}")))
        };
        for _ in 0..pool.threads().clamp(1, plan.slices.len().max(1)) {
            start()?;
        }
        let merger = Merger::new(recording, code, &plan, options, &spare, sink)?;
        let inputs = Inputs { receive, waiting: BTreeMap::new(), pool, start: &start };
        collect(merger, &plan, options, inputs)
    })
}

/// From the threads that decode.
enum Message {
    /// Of the slice with this number.
    Part(usize, Result<Output>),
    /// A thread waits until parts of its slice are taken.
    Waits,
}

/// The work of each thread.
fn decode(
    recording: &Recording,
    code: &Code,
    plan: &Plan,
    bare: bool,
    pool: &ThreadPool,
    spare: &Spare<Item>,
    send: &mpsc::Sender<Message>,
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
        let mut emit = |part| {
            let waits = || _ = send.send(Message::Waits);
            let wanted = pool.send(number, waits) && send.send(Message::Part(number, Ok(part))).is_ok();
            // The error that ended the run is reported, not this one.
            if wanted {
                Ok(())
            } else {
                Err(Error::bug("no part is wanted any more"))
            }
        };
        let slice = || {
            let mut ready = match walker.take() {
                Some(ready) => ready,
                None => Walker::new(recording, code, bare, spare)?,
            };
            let output = ready.slice(&track.runs[place.run], &track.track, &place.slice, &mut emit);
            walker = Some(ready);
            output
        };
        // A thread that ends without a report would leave the others waiting.
        let result = catch_unwind(AssertUnwindSafe(slice))
            .unwrap_or_else(|_| Err(Error::bug(format_args!("slice {number} could not be decoded"))));
        pool.decoded();
        if send.send(Message::Part(number, result)).is_err() {
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

/// Parts of slices as they arrive.
struct Inputs<'a> {
    receive: mpsc::Receiver<Message>,
    waiting: BTreeMap<usize, VecDeque<Result<Output>>>,
    pool: &'a ThreadPool,
    /// Starts another thread.
    start: &'a dyn Fn() -> Result<()>,
}

impl Inputs<'_> {
    /// The next part of a slice.
    fn part(&mut self, number: usize) -> Result<Output> {
        loop {
            if let Some(part) = self.waiting.get_mut(&number).and_then(VecDeque::pop_front) {
                self.pool.taken(number);
                if part.as_ref().map_or(true, |part| !part.goes_on) {
                    self.waiting.remove(&number);
                }
                return part;
            }
            // Only if slices are so long that all threads have to wait with theirs.
            if self.pool.lacks_thread(number) {
                (self.start)()?;
            }
            match self.receive.recv() {
                Ok(Message::Part(n, part)) => self.waiting.entry(n).or_default().push_back(part),
                Ok(Message::Waits) => {}
                Err(_) => return Err(Error::memory("a thread ended without a result")),
            }
        }
    }
}

fn collect(mut merger: Merger, plan: &Plan, options: &Options, mut inputs: Inputs) -> Result<Counts> {
    let mut progress = Progress::new(options.progress, plan.bytes());
    let mut begun = 0;
    while let Some(number) = merger.wants() {
        let part = inputs.part(number)?;
        if number == begun {
            begun += 1;
            inputs.pool.consumed();
        }
        if !part.goes_on {
            progress.done(plan.slices[number].size());
        }
        merger.take(number, part)?;
    }
    progress.finish();
    merger.finish()
}
