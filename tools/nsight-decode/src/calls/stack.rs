// SPDX-License-Identifier: GPL-2.0-only
//! What runs on one core: its thread, and the open calls.

mod events;
mod frames;
mod returns;

use std::collections::HashMap;

use super::account::Granularity;
use super::row::{Kind, Known, Row};
use super::texts::{Function, Texts};
use crate::edges::{Edge, Kind as Way};
use frames::{context, Entry, Frame};

/// Complete rows are written in batches of this many.
pub const BATCH: usize = 1 << 16;
/// If there are many cores, batches are smaller: this many rows of all cores together, but not less than this of one.
const ALL_BATCHES: usize = 1 << 19;
const LEAST_BATCH: usize = 1 << 13;
/// Limit for the open calls of a core. A cut or a switch keeps the innermost ones: each of them gets a new row.
const DEEPEST: usize = 1 << 14;
const KEPT: usize = 1 << 12;
/// Cause of a gap.
const OVERFLOW: &str = "overflow";
/// Rows without a core: their numbers begin with the number of their thread.
const THREAD_SHIFT: u32 = 28;
/// This many threads fit into the row numbers of a core.
pub const MOST_THREADS: usize = 1 << 12;

/// Frames of threads that are off CPU, by `thread_key`.
pub type Saved = HashMap<i64, Vec<Frame>>;

/// Nothing is known since `start`.
#[derive(Clone, Copy, Debug)]
struct Gap {
    start: u64,
    /// The stack may have changed.
    lost: bool,
    cause: &'static str,
}

pub struct Core {
    pub cpu: i32,
    rows: Vec<Row>,
    /// Rows that `take` has already returned.
    base: i64,
    /// How many of `rows`, from the begin, are complete.
    done: usize,
    thread: Option<(i64, i32, i32)>,
    stack: Vec<Frame>,
    gap: Option<Gap>,
    /// Time of the last edge or stall.
    last: u64,
    /// The distance from the last edge to the next one says nothing about the granularity.
    apart: bool,
    /// Text of the last function that was called.
    before: u32,
    ratio: Option<u64>,
    /// A ratio that has no row yet.
    early_ratio: Option<u64>,
    /// Edges show which function was jumped to. Edges from perf do not: there, any function may run.
    tells_jumps: bool,
    /// The row of an overflow after which the trace resumes at a time that is not known yet.
    untold: Option<i64>,
    /// Pid and tid, if the trace is of one thread and its core is not known.
    owner: Option<(i32, i32)>,
    pub granularity: Granularity,
    /// Calls whose end is not known because too many were open.
    pub forgotten: u64,
}

fn is_kernel(ip: u64) -> bool {
    ip >> 63 != 0
}

impl Core {
    pub fn new(cpu: i32) -> Self {
        Self {
            cpu,
            rows: Vec::new(),
            base: 0,
            done: 0,
            thread: None,
            stack: Vec::new(),
            gap: None,
            last: 0,
            apart: true,
            before: 0,
            ratio: None,
            early_ratio: None,
            tells_jumps: false,
            untold: None,
            owner: None,
            granularity: Granularity::default(),
            forgotten: 0,
        }
    }

    /// For a thread whose core is not known. `number` (up to `MOST_THREADS`) identifies it: each such thread has
    /// separate row numbers.
    pub fn of_thread(number: i64, pid: i32, tid: i32) -> Self {
        Self { base: number << THREAD_SHIFT, owner: Some((pid, tid)), ..Self::new(-1) }
    }

    /// Each core has its own idle thread, and all of them have tid 0. An edge file may contain any core number.
    fn key(&self, tid: i32) -> i64 {
        if tid == 0 {
            i64::MIN + i64::from(self.cpu as u32)
        } else {
            tid.into()
        }
    }

    /// All unknown threads have a negative number: nothing says that the next one continues the same calls.
    fn save(&self, tid: i32, frames: Vec<Frame>, saved: &mut Saved) {
        if tid >= 0 {
            saved.insert(self.key(tid), frames);
        }
    }

    /// Whether there are enough complete rows to be written; of `n_cores`, each has as many.
    pub fn is_ready(&self, n_cores: usize) -> bool {
        self.done >= BATCH || self.done >= LEAST_BATCH && self.done * n_cores >= ALL_BATCHES
    }

    /// Whether too many calls are open.
    pub fn is_deep(&self) -> bool {
        self.stack.len() >= DEEPEST
    }

    /// Rows that were not taken yet, complete or not.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Whether most rows wait for the end of a call, and a cut would complete them: it opens each call again.
    pub fn is_held(&self) -> bool {
        self.done < self.rows.len() / 2 && self.rows.len() > 4 * self.stack.len()
    }

    /// The complete rows, and the number of the first. `spare` is the memory for the next rows.
    pub fn take(&mut self, mut spare: Vec<Row>) -> (i64, Vec<Row>) {
        let first = self.base;
        spare.clear();
        spare.extend_from_slice(&self.rows[self.done..]);
        self.rows.truncate(self.done);
        let rows = std::mem::replace(&mut self.rows, spare);
        self.base += rows.len() as i64;
        self.done = 0;
        (first, rows)
    }

    fn row(&mut self, number: i64) -> &mut Row {
        let index = (number - self.base) as usize;
        &mut self.rows[index]
    }

    // -- rows ---------------------------------------------------------------------------

    fn top(&self) -> Option<i64> {
        self.stack.last().map(|f| f.row).or(self.thread.map(|t| t.0))
    }

    fn open(&mut self, kind: Kind, symbol: u32, dso: u32, time: u64, known: Known) -> i64 {
        let parent = self.top();
        let depth = parent.map_or(0, |p| self.row(p).depth + 1);
        let (_, pid, tid) = self.thread.unwrap_or((0, -1, -1));
        self.rows.push(Row {
            parent: parent.unwrap_or(-1),
            depth,
            kind,
            symbol,
            dso,
            pid,
            tid,
            start: time,
            end: time,
            children: 0,
            start_known: known,
            end_known: Known::Inferred,
            arg: 0,
            address: 0,
            before: u32::MAX,
            cause: u32::MAX,
        });
        self.base + self.rows.len() as i64 - 1
    }

    fn close(&mut self, number: i64, time: u64, known: Known) {
        let row = self.row(number);
        row.end = time.max(row.start);
        row.end_known = known;
        let (parent, dur) = (row.parent, row.end - row.start);
        if parent >= 0 {
            self.row(parent).children += dur;
        }
    }

    fn push(&mut self, frame: Frame, time: u64, known: Known) {
        let row = self.open(frame.kind, frame.function.symbol, frame.function.dso, time, known);
        self.row(row).address = frame.address;
        self.stack.push(Frame { row, context: context(&self.stack), ..frame });
    }

    fn enter(&mut self, entry: Entry, kind: Kind, function: Function, address: u64, time: u64, known: Known) {
        self.push(Frame { row: 0, context: 0, entry, kind, function, address }, time, known);
    }

    /// Opens a function that runs but whose begin was not seen.
    fn find(&mut self, function: Function, address: u64, time: u64) {
        self.enter(Entry::Unknown, Kind::Function, function, address, time, Known::Missing);
    }

    /// Closes the innermost frame.
    fn pop(&mut self, time: u64, known: Known) -> Option<Frame> {
        let frame = self.stack.pop()?;
        self.close(frame.row, time, known);
        Some(frame)
    }

    /// Closes frames until `n` are left. The end of those that the return skips is inferred.
    fn pop_to(&mut self, n: usize, time: u64) {
        while self.stack.len() > n {
            let known = if self.stack.len() == n + 1 { Known::Measured } else { Known::Inferred };
            self.pop(time, known);
        }
    }

    // -- threads ------------------------------------------------------------------------

    /// The thread leaves the core. Returns the frames of the thread.
    fn suspend(&mut self, time: u64, known: Known) -> Vec<Frame> {
        let frames = self.stack.clone();
        while self.pop(time, known).is_some() {}
        if let Some((row, ..)) = self.thread.take() {
            self.close(row, time, known);
        }
        self.done = self.rows.len();
        frames
    }

    fn resume(&mut self, pid: i32, tid: i32, frames: Vec<Frame>, time: u64, known: Known, texts: &mut Texts) {
        let kind = if tid == 0 { Kind::Idle } else { Kind::Thread };
        let (symbol, dso) = (texts.thread(tid, time), texts.number(""));
        self.thread = None;
        let row = self.open(kind, symbol, dso, time, known);
        (self.row(row).pid, self.row(row).tid) = (pid, tid);
        self.thread = Some((row, pid, tid));
        let outer = frames.len().saturating_sub(KEPT);
        self.forgotten += outer as u64;
        for &frame in &frames[outer..] {
            self.push(frame, time, Known::Inferred);
        }
    }

    /// Makes the edge's thread the current one, and ends a gap.
    fn arrive(&mut self, edge: &Edge, time: u64, texts: &mut Texts, saved: &mut Saved) {
        let current = self.thread.map(|t| (t.1, t.2));
        let same = current == Some((edge.pid, edge.tid));
        let to = texts.function(edge.to_sym);
        if let Some(gap) = self.gap.take() {
            let goes_on = self.stack.last().is_some_and(|f| f.function.symbol == to.symbol);
            if !gap.lost && same && goes_on {
                self.gap_row(gap, time, texts);
                return;
            }
            let known = if gap.lost || same { Known::Missing } else { Known::Inferred };
            let frames = self.suspend(gap.start, known);
            if let Some((_, tid)) = current.filter(|_| known == Known::Inferred) {
                self.save(tid, frames, saved);
            }
            self.gap_row(gap, time, texts);
            // perf reports where an overflow ends before it reports when: the first edge has the time at which the
            // overflow began.
            let is_untold = gap.cause == OVERFLOW && time <= gap.start;
            self.untold = is_untold.then_some(self.base + self.rows.len() as i64 - 1);
            let frames = if gap.lost || same { None } else { saved.remove(&self.key(edge.tid)) };
            if gap.lost {
                saved.remove(&self.key(edge.tid));
            }
            self.resume(edge.pid, edge.tid, frames.unwrap_or_default(), time, known, texts);
            self.apart = true;
        } else if !same {
            let at = time.max(self.last);
            let frames = self.suspend(at, Known::Inferred);
            if let Some((_, tid)) = current {
                self.save(tid, frames, saved);
            }
            let frames = saved.remove(&self.key(edge.tid)).unwrap_or_default();
            self.resume(edge.pid, edge.tid, frames, at, Known::Inferred, texts);
        }
    }

    fn gap_row(&mut self, gap: Gap, time: u64, texts: &mut Texts) {
        if time <= gap.start && !gap.lost {
            return;
        }
        let (symbol, dso) = (texts.number(gap.cause), texts.number(""));
        let row = self.open(Kind::Gap, symbol, dso, gap.start, Known::Measured);
        (self.row(row).cause, self.row(row).before) = (symbol, self.before);
        if let Some(owner) = self.owner {
            (self.row(row).pid, self.row(row).tid) = owner;
        }
        self.close(row, time, Known::Measured);
    }

    // -- edges --------------------------------------------------------------------------

    pub fn edge(&mut self, edge: &Edge, texts: &mut Texts, saved: &mut Saved) {
        let time = edge.time.max(self.last);
        self.lasts_until(time);
        self.arrive(edge, time, texts, saved);
        if !std::mem::take(&mut self.apart) {
            self.granularity.step(time - self.last);
        }
        let to = texts.function(edge.to_sym);
        if self.stack.is_empty() && edge.from != 0 {
            let from = texts.function(edge.from_sym);
            let (thread, ..) = self.thread.unwrap_or_default();
            let first = thread == self.base + self.rows.len() as i64 - 1;
            let since = if first { self.row(thread).start } else { self.last };
            self.find(from, edge.from, since);
        }
        if let Some(ratio) = self.early_ratio.take() {
            self.mark_row(Kind::Frequency, ratio, time, texts);
        }
        self.tells_jumps |= edge.kind == Way::TailCall;
        if self.tells_jumps && matches!(edge.kind, Way::Call | Way::TailCall | Way::Syscall) {
            self.come_back(texts.function(edge.from_sym), time);
        }
        self.last = time;
        match edge.kind {
            Way::Call => {
                self.enter(Entry::Call(edge.from), Kind::Function, to, edge.to, time, Known::Measured)
            }
            Way::Return => self.ret(edge.to, to, time),
            Way::TailCall => self.tail_call(to, edge.to, time),
            Way::Syscall => {
                self.enter(Entry::Syscall(edge.from), Kind::Syscall, to, edge.to, time, Known::Measured);
            }
            Way::Interrupt | Way::SoftInterrupt => {
                let kind = if to.is_exception { Kind::Exception } else { Kind::Hardirq };
                self.enter(Entry::Interrupt(edge.from), kind, to, edge.to, time, Known::Measured);
            }
            Way::Sysret | Way::Iret if is_kernel(edge.to) => self.back_to_kernel(edge.to, to, time),
            Way::Sysret | Way::Iret => self.back_to_user(edge.to, to, time),
            Way::TraceBegin => {
                self.apart = true;
                if self.stack.is_empty() {
                    self.find(to, edge.to, time);
                }
            }
            Way::TraceEnd => self.gap = Some(Gap { start: time, lost: false, cause: "not traced" }),
        }
        if matches!(edge.kind, Way::Call | Way::TailCall | Way::Syscall | Way::Interrupt | Way::SoftInterrupt)
        {
            self.before = to.symbol;
            if to.is_exec {
                self.exec();
            }
        }
    }

    /// Closes all calls and opens them again, so that their rows are complete.
    pub fn cut(&mut self, texts: &mut Texts) {
        let Some((_, pid, tid)) = self.thread else { return };
        // Nothing runs during a gap.
        let at = self.gap.map_or(self.last, |gap| gap.start);
        let frames = self.suspend(at, Known::Inferred);
        // Complete rows do not change any more.
        self.untold = None;
        self.resume(pid, tid, frames, at, Known::Inferred, texts);
    }

    pub fn finish(&mut self) {
        let until = self.gap.map_or(self.last, |gap| gap.start);
        self.suspend(until, Known::Inferred);
    }
}

#[cfg(test)]
mod tests;
